// HostLink: this rank's line to the other hosts, with a thread of its own, so that transfers go on
// while the rank computes.
//
// It asks for this rank (`request`), answers the ranks that it serves (with anything of its host:
// the segments and counters of all ranks of the host are mapped here), keeps the places of other
// hosts' ranks in the control page, and carries failures across.
//
// [Note: one message] The first rank of a host to fail asks the first host that it can still reach
// and that comes before its own whether it may print; a host that reaches none prints. Where the
// rank that should be asked is the one that died, other ranks of this host ask in its place, and
// leave the answer in the control page. So a run prints one message as long as its hosts reach each
// other.
//
// Ownership: owns the connections, its thread and the engine; the page, the map and the segments
// must outlive it. Threads: the public calls are the rank's one; the rest is the link's. Errors: a
// connection that breaks is entered in the control page, where all waits see it: the peer died, or
// cannot be reached any more.
#pragma once

#include <poll.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "fsdp/comm/hosts/host_rendezvous.h"
#include "fsdp/comm/hosts/link_line.h"
#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/peer_segments.h"
#include "fsdp/comm/payload_engine.h"
#include "kernels/core/dtype.h"

namespace ofsdp::fsdp {

struct LinkRequest {
  int server = 0;
  LinkHeader header;
  std::byte* dst = nullptr;
  size_t bytes = 0;
  // When the bytes are there: becomes `value`, or grows by one if `value` is 0; then this rank's
  // doorbell rings.
  std::atomic<uint64_t>* done = nullptr;
  uint64_t value = 0;

  bool is_shard() const { return header.kind == LinkKind::kShard; }
};

// The memory that the link may read for others, once it is allocated.
struct LinkMemory {
  const PeerSegments* segments = nullptr;
  size_t bytes = 0;              // of each segment that peers may read
  std::byte* buffers = nullptr;  // for sums on their way out
  int buffer_count = 0;          // of kPieceBytes each
};

class HostLink {
 public:
  static Result<std::unique_ptr<HostLink>> start(const HostMap* map, const ControlPage* page,
                                                 HostsRendezvous& meeting,
                                                 std::unique_ptr<PayloadEngine> engine);
  ~HostLink();

  std::string name() const { return engine_ ? engine_->name() : "tcp"; }
  void serve(const LinkMemory& memory);
  void request(const LinkRequest& request);
  // May this rank, the first of its host to fail, print? Waits a moment for other hosts.
  bool claim(uint32_t failure);
  // The rank that keeps `rank` waiting, or everybody, as far as their hosts can say.
  int blame(int rank);
  // This rank has posted, summed or begun an exchange, which other hosts may wait for.
  void nudge() {
    if (deferring_.load(std::memory_order_seq_cst)) wake();
  }
  // A peer asks for a shard after a barrier and has it before the next. That order goes over
  // sockets, where the memory model of C++ does not see it: what this rank did before its turn here
  // comes before what the link's thread does after its own, and the other way around.
  void take_turn() { turns_.fetch_add(1, std::memory_order_acq_rel); }
  // Shards that were asked for and have not come go nowhere: their memory is the caller's again.
  void abandon_shards();
  void say_leave();
  // Until what has been said is on its way, at most `patience`.
  void settle(std::chrono::milliseconds patience);
  void stop();

 private:
  HostLink(const HostMap* map, const ControlPage* page, HostsRendezvous& meeting,
           std::unique_ptr<PayloadEngine> engine, UniqueFd wake);

  enum class Question { kNone, kClaim, kWho };
  static constexpr uint32_t kPlaces = 1 << 15;  // of requests, and of those deferred on a line
  void run();
  void take_orders();
  void drop_shards();
  void wait_for_events();
  void flush_all();
  void read(LinkLine& line);
  bool take_header(LinkLine& line, const LinkHeader& header, std::byte*& payload);

  // Requests of this rank: host_link_requests.cpp.
  void send_request(const LinkRequest& request);
  bool take_answer(LinkLine& line, const LinkHeader& header, std::byte*& payload);
  void finish(uint32_t id);
  void half_done(uint32_t id);
  void finish_exchange(const LinkRequest& request);
  void progress_engine();

  // Answers to others: host_link_answers.cpp.
  bool valid(const LinkHeader& header) const;
  bool valid_group(const LinkHeader& header) const;
  int first_here(const LinkHeader& header) const;  // of the group's
  int missing(const LinkHeader& header) const;     // the rank that it waits for, or -1
  void serve_deferred();
  bool answer(LinkLine& line, const LinkHeader& request);
  bool answer_with_data(LinkLine& line, const LinkHeader& request);
  bool answer_partial(LinkLine& line, const LinkHeader& request);
  void answer_exchange(LinkLine& line, const LinkHeader& request);
  void reply(LinkLine& line, const LinkHeader& request, const LinkAnswer& answer);
  void sent(const LinkAnswer& answer);
  void count_served(int channel, int cell, int64_t elements);
  const std::byte* segment(int rank) const;

  // Failure: host_link_failure.cpp.
  void engine_failed(const Status& status);
  void lost(LinkLine& line, int error);
  void relay_failure();
  void ask();
  LinkLine* line_to_host(int host);
  LinkLine* arbiter();
  struct Decision {
    std::optional<bool> verdict;
    LinkLine* line = nullptr;  // else whom to ask; neither: wait for what others are told
  };
  Decision decision();
  void take_failed(const LinkLine& line, const LinkHeader& header);
  void take_claim(LinkLine& line, const LinkHeader& header);
  void take_who(LinkLine& line, const LinkHeader& header);
  int idle_here() const;
  int idle_anywhere(int otherwise);
  // Returns the answer; none: it did not come in time.
  std::optional<LinkHeader> put_question(Question question, const LinkHeader& header,
                                         std::chrono::milliseconds patience);
  void set_reply(const LinkHeader& header);
  void take_reply(const LinkLine& line, const LinkHeader& header);
  void wake();

  const HostMap* map_;
  const ControlPage* page_;
  std::vector<std::unique_ptr<LinkLine>> lines_;  // servers, then clients
  size_t servers_ = 0;
  std::unique_ptr<PayloadEngine> engine_;
  UniqueFd wake_;

  // The link's thread alone uses these.
  std::vector<LinkRequest> under_way_;  // by the low half of their id
  std::vector<uint32_t> ids_;           // the last id of each place
  std::vector<uint32_t> free_;
  std::vector<int> free_buffers_;
  std::vector<std::vector<double>> exchanged_;  // by host
  std::vector<PayloadEngine::Done> engine_done_;
  struct Outgoing {
    int peer;
    uint32_t id;
    LinkAnswer answer;
  };
  std::vector<Outgoing> outgoing_;  // answers in the engine
  int arriving_ = 0;                // payloads that the engine is about to bring
  std::deque<bool> half_;           // by place: of answer and payload one has come
  bool relayed_ = false;
  int asked_for_other_ = -1;  // the peer that is to say whether another rank of this host may print
  std::vector<uint32_t> heard_;  // by host: the failure that it knows of
  std::string engine_error_;
  std::vector<pollfd> events_;

  // Shared with the rank's thread.
  std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<LinkRequest> orders_, taken_;
  LinkMemory memory_;
  Question question_ = Question::kNone;
  bool asked_ = false, replied_ = false, leaving_ = false, settling_ = false;
  int asked_peer_ = -1;
  std::chrono::steady_clock::time_point others_until_;  // as long may others of this host be told
  uint32_t questions_ = 0;
  LinkHeader question_header_, reply_header_;
  std::atomic<bool> serving_{false}, stopping_{false}, ordered_{false};
  bool abandoning_ = false;  // under mutex_: the rank waits until that is done
  bool abandoned_ = false;   // of the link's thread, for good
  std::atomic<uint64_t> turns_{0};
  std::atomic<bool> deferring_{false};  // requests wait for ranks of this host
  std::thread thread_;
};

}  // namespace ofsdp::fsdp
