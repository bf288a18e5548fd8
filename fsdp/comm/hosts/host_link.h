// HostLink connects this rank to the other hosts. A thread transfers data while the rank computes.
//
// It sends this rank's requests (`request`) and answers the ranks that this one serves, from all
// segments and counters on this host, which are mapped here. It also writes remote ranks' counters
// into the control page, and carries failures across hosts.
//
// [Note: one message] A run prints one message as long as the hosts reach each other. The first
// rank on a host to fail asks the arbiter whether it may print: the first host that precedes this
// own and can be reached. A host without an arbiter prints. If the failed rank cannot reach the
// arbiter, because the rank to ask has died, other ranks on the same host ask instead and leave the
// verdict in the control page.
//
// Owns the connections, the thread and the engine; page, map and segments must outlive it. The
// rank's thread makes the public calls. If a connection breaks, the control page says that the peer
// died or cannot be reached, and every wait sees it.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fsdp/comm/communicator.h"
#include "fsdp/comm/hosts/host_rendezvous.h"
#include "fsdp/comm/local/control_page.h"
#include "fsdp/comm/local/peer_segments.h"
#include "kernels/base/posix_file.h"
#include "kernels/core/dtype.h"

namespace ofsdp::fsdp {

// LinkLine: one connection between two ranks on different hosts while they train, and the messages.
//
// A rank sends requests to one rank on each other host, the server; the server answers as
// soon as it has the data. The request says how many bytes it has room for, so no payload arrives
// unasked and an unread payload never blocks a connection. Messages:
//
//   kShard     bytes [offset, offset + bytes) in `rank`'s segment
//   kPartial   `numel` elements from `offset` in a channel's slots: the float32 sum over the
//              group's ranks on this host once they have posted `round`; if it is one rank, the
//              elements as they are
//   kSummed    as kShard, once `rank` has summed a channel's span `round` times
//   kExchange  each rank's `numel` doubles on the host for exchange `round`
//   kData      the answer to request `id`: `bytes` follow, or go through the payload engine
//   kGone      request `id` cannot be answered: `rank` has left
//   kFailed    the run failed: `value` as in RunFlags::failed
//   kClaim     asks whether `rank` may print the failure's message. kVerdict: value 1 if it may
//   kWho       asks which rank keeps `rank` waiting. kBlame: `rank`, with value 1 if that one waits
//              too. With `value` 1: asks for a rank on the host that waits for nobody, or -1
//   kLeave     the sender has finished in order

inline constexpr uint32_t kLinkMagic = 0x6b6e696c;  // "link"
inline constexpr size_t kPieceBytes = size_t{256} << 10;
inline constexpr int64_t kPieceElements = static_cast<int64_t>(kPieceBytes / sizeof(float));

enum class LinkKind : uint16_t {
  kShard = 1,
  kPartial,
  kSummed,
  kExchange,
  kData,
  kGone,
  kFailed,
  kClaim,
  kVerdict,
  kWho,
  kBlame,
  kLeave,
};

struct LinkHeader {
  uint32_t magic = kLinkMagic;
  LinkKind kind = LinkKind::kData;
  uint16_t dtype = 0;
  uint32_t id = 0;
  int32_t rank = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
  int64_t numel = 0;
  uint64_t round = 0;
  uint64_t value = 0;
  int32_t channel = 0, first = 0, count = 0, stride = 0;
};
static_assert(sizeof(LinkHeader) == 72);

// A message's payload, and the bookkeeping to do once it is sent.
struct LinkAnswer {
  const std::byte* data = nullptr;
  size_t bytes = 0;
  int buffer = -1;   // the sender's buffer that holds the bytes, or -1
  int channel = -1;  // the channel that counts `elements` as served, or -1
  int cell = 0;      // the rank in that channel
  int64_t elements = 0;
};

// Queues messages and reads them without blocking. Owns the socket; payloads that are queued belong
// to the caller and must stay until `sent` names them.
class LinkLine {
 public:
  static constexpr size_t kMaxPending = 4096;  // a rank has far fewer requests under way

  LinkLine(int peer, UniqueFd socket) : peer_(peer), socket_(std::move(socket)) {}

  int peer() const { return peer_; }
  int fd() const { return socket_.get(); }
  bool open() const { return socket_.valid(); }
  void close() { socket_.reset(); }
  bool idle() const { return queue_.empty(); }

  void queue(const LinkHeader& header, const LinkAnswer& answer = {}) {
    if (open()) queue_.push_back({header, answer});
  }

  // Writes as much as the socket takes and calls `sent` for each payload that is out. Returns false
  // if the connection broke.
  bool flush(const std::function<void(const LinkAnswer&)>& sent);
  // Reads until nothing is left. `header` sets where a message's payload goes, or leaves null if
  // there is none, and returns false if the message is wrong; `payload` is called once the payload
  // is complete. Returns false if the line is closed or broken, or if the peer keeps asking without
  // reading; `error` is then an errno, or 0 if the peer closed the connection.
  bool receive(const std::function<bool(const LinkHeader&, std::byte*&)>& header,
               const std::function<void(const LinkHeader&)>& payload, int& error);

  // Returns the arriving payload's header, or null. After drop(), or if `header` set the
  // destination to nowhere(), the payload is read and discarded.
  const LinkHeader* arriving() const { return in_payload_ ? &in_ : nullptr; }
  void drop() { target_ = nowhere(); }
  std::byte* nowhere() { return dropped_.data(); }

  std::vector<LinkHeader> deferred;  // requests that cannot be answered yet
  // The last two exchanges' payloads on their way out; empty unless the peer is the first rank on
  // its host, which alone asks for them.
  std::vector<double> doubles[2];
  bool left = false;  // the peer has sent kLeave

 private:
  struct Out {
    LinkHeader header;
    LinkAnswer answer;
  };
  int peer_;
  UniqueFd socket_;
  std::deque<Out> queue_;
  size_t written_ = 0;  // bytes in the first message that are out
  LinkHeader in_;
  size_t got_ = 0;  // header or payload bytes that have arrived
  std::byte* target_ = nullptr;
  bool in_payload_ = false;
  std::array<std::byte, 4096> dropped_;
};

struct LinkRequest {
  int server = 0;
  LinkHeader header;
  std::byte* dst = nullptr;
  size_t bytes = 0;
  // Once the bytes have arrived, *done becomes `value`, or grows by one if `value` is 0. Then this
  // rank's doorbell rings.
  std::atomic<uint64_t>* done = nullptr;
  uint64_t value = 0;

  bool is_shard() const { return header.kind == LinkKind::kShard; }
};

// The memory from which the link serves other hosts.
struct LinkMemory {
  const PeerSegments* segments = nullptr;
  std::byte* buffers = nullptr;  // for sums on their way out
  int buffer_count = 0;          // each with kPieceBytes
};

class HostLink {
 public:
  static Result<std::unique_ptr<HostLink>> start(const HostMap* map, const ControlPage* page,
                                                 HostsRendezvous& meeting,
                                                 std::unique_ptr<PayloadEngine> engine);
  ~HostLink();

  std::string name() const { return engine_ ? engine_->name() : "tcp"; }
  // Answers requests for this host's memory from now on.
  void serve(const LinkMemory& memory);
  void request(const LinkRequest& request);
  // Asks the other hosts whether this rank, the first on its host to fail, may print its message.
  // Waits only briefly for the answer.
  bool claim(uint32_t failure);
  // Returns the rank to blame for the delay of `rank`, asking the hosts one after the other: the
  // rank that keeps it waiting or, if the ranks wait for each other, one that waits for nobody. If
  // a host does not answer, blames a rank there.
  int blame(int rank);
  // Call after this rank has posted, summed or begun an exchange: other hosts may wait for it.
  void nudge() {
    if (deferring_.load(std::memory_order_seq_cst)) wake();
  }
  // A memory fence between the rank's thread and the link's thread; never waits. A peer requests a
  // shard after one barrier and has it before the next, but that order goes over sockets, which the
  // C++ memory model does not see.
  void take_turn() { turns_.fetch_add(1, std::memory_order_acq_rel); }
  // Discards shards that have not arrived. Their memory is the caller's again on return.
  void abandon_shards();
  void say_leave();
  // Blocks until all queued messages are written, for at most `patience`.
  void settle(std::chrono::milliseconds patience);
  void stop();

 private:
  HostLink(const HostMap* map, const ControlPage* page, HostsRendezvous& meeting,
           std::unique_ptr<PayloadEngine> engine, UniqueFd wake);

  enum class Question { kNone, kClaim, kWho };
  static constexpr uint32_t kPlaces = 1 << 15;  // at most as many requests are pending or deferred
  void run();
  void take_orders();
  void drop_shards();
  void wait_for_events();
  void flush_all();
  void read(LinkLine& line);
  bool take_header(LinkLine& line, const LinkHeader& header, std::byte*& payload);

  // This rank's requests.
  void send_request(const LinkRequest& request);
  bool take_answer(LinkLine& line, const LinkHeader& header, std::byte*& payload);
  void finish(uint32_t id);
  void half_done(uint32_t id);
  void finish_exchange(const LinkRequest& request);
  void progress_engine();

  // Answers to others.
  bool valid(const LinkHeader& header) const;
  bool well_formed(const LinkHeader& header) const;  // valid, but for places in segments
  bool valid_group(const LinkHeader& header) const;
  bool lies_in_segment(const LinkHeader& header, int rank) const;
  int first_here(const LinkHeader& header) const;  // a member in the request's group
  int missing(const LinkHeader& header) const;     // the rank that the request waits for, or -1
  void serve_deferred();
  bool answer(LinkLine& line, const LinkHeader& request);
  bool answer_with_data(LinkLine& line, const LinkHeader& request);
  bool answer_partial(LinkLine& line, const LinkHeader& request);
  void answer_exchange(LinkLine& line, const LinkHeader& request);
  void reply(LinkLine& line, const LinkHeader& request, const LinkAnswer& answer);
  void sent(const LinkAnswer& answer);
  void count_served(int channel, int cell, int64_t elements);
  const std::byte* segment(int rank) const;

  // Failures: host_link_failure.cpp.
  void engine_failed();
  void lost(LinkLine& line, int error);
  void relay_failure();
  void ask();
  LinkLine* line_to_host(int host);
  LinkLine* arbiter();
  // The verdict, or the line to ask for it, or neither: wait until another rank on the host hears.
  struct Decision {
    std::optional<bool> verdict;
    LinkLine* line = nullptr;
  };
  Decision decision();
  void take_failed(const LinkLine& line, const LinkHeader& header);
  void take_claim(LinkLine& line, const LinkHeader& header);
  void take_who(LinkLine& line, const LinkHeader& header);
  int idle_here() const;
  int idle_anywhere(int otherwise);
  // Blocks for the answer, at most `patience`.
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

  // Only the link's thread uses these.
  std::vector<LinkRequest> pending_;  // the request with this id is at index id % kPlaces
  std::vector<uint32_t> ids_;         // the last id at each index
  std::vector<uint32_t> free_;        // indices
  std::vector<int> free_buffers_;
  std::vector<const std::byte*> sources_;  // scratch: at most one address per rank on this host
  std::vector<std::vector<double>> exchanged_;  // by host; empty unless first on this host
  std::vector<PayloadEngine::Done> engine_done_;
  struct Outgoing {
    int peer;
    uint32_t id;
    LinkAnswer answer;
  };
  std::vector<Outgoing> outgoing_;  // answers in the engine
  int arriving_ = 0;                // payloads that the engine must still deliver
  std::deque<bool> half_;           // half_[i]: answer or payload of request i has arrived
  bool relayed_ = false;
  int asked_for_other_ = -1;     // the peer asked on behalf of another rank on this host
  std::vector<uint32_t> heard_;  // by host: the failure that it reported
  std::vector<pollfd> events_;

  // Shared with the rank's thread.
  std::mutex mutex_;
  std::condition_variable answered_;
  std::vector<LinkRequest> orders_, taken_;
  LinkMemory memory_;
  Question question_ = Question::kNone;
  bool asked_ = false, replied_ = false, leaving_ = false, settling_ = false;
  int asked_peer_ = -1;
  std::chrono::steady_clock::time_point
      others_until_;  // wait until then for another rank's verdict
  uint32_t questions_ = 0;
  LinkHeader question_header_, reply_header_;
  std::atomic<bool> serving_{false}, stopping_{false}, ordered_{false};
  bool abandoning_ = false;  // under mutex_: the rank waits until the link has abandoned shards
  bool abandoned_ = false;   // used by the link's thread; never reset
  std::atomic<uint64_t> turns_{0};
  std::atomic<bool> deferring_{false};  // requests wait for ranks on this host
  std::thread thread_;
};

}  // namespace ofsdp::fsdp
