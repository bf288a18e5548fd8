// LinkLine: one connection between two ranks on different hosts while they train, and the messages.
//
// A rank sends requests to one rank on each other host, the server; the server answers as
// soon as it has the data. The request says how many bytes it has room for, so no payload arrives
// unasked and an unread payload never blocks a connection. Messages:
//
//   kShard     bytes [offset, offset + bytes) of the segment of `rank`
//   kPartial   `numel` elements from `offset` in the slots of a channel: the float32 sum over the
//              group's ranks on this host once they have posted `round`; if it is one rank, the
//              elements as they are
//   kSummed    as kShard, once `rank` has summed a span of the channel `round` times
//   kExchange  the `numel` doubles of each rank on the host for exchange `round`
//   kData      the answer to request `id`: `bytes` follow, or go through the payload engine
//   kGone      request `id` cannot be answered: `rank` has left
//   kFailed    the run failed: `value` as in RunFlags::failed
//   kClaim     asks whether `rank` may print the failure's message. kVerdict: value 1 if it may
//   kWho       asks which rank keeps `rank` waiting. kBlame: `rank`, with value 1 if that one waits
//              too. With `value` 1: asks for a rank on the host that waits for nobody, or -1
//   kLeave     the sender has finished in order
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "kernels/base/posix_file.h"

namespace ofsdp::fsdp {

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

// The payload of a message, and the bookkeeping to do once it is sent.
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
  // Reads until nothing is left. `header` sets the destination of a message's payload, or leaves
  // null if there is none, and returns false if the message is wrong; `payload` is called once the
  // payload is complete. Returns false if the line is closed or broken, or if the peer keeps asking
  // without reading; `error` is then an errno, or 0 if the peer closed the connection.
  bool receive(const std::function<bool(const LinkHeader&, std::byte*&)>& header,
               const std::function<void(const LinkHeader&)>& payload, int& error);

  // Returns the header of the payload that is arriving, or null. After drop(), or if `header` set
  // the destination to nowhere(), the payload is read and discarded.
  const LinkHeader* arriving() const { return in_payload_ ? &in_ : nullptr; }
  void drop() { target_ = nowhere(); }
  std::byte* nowhere() { return dropped_.data(); }

  std::vector<LinkHeader> deferred;  // requests that cannot be answered yet
  std::vector<double> doubles[2];    // payloads of the last two exchanges on their way out
  bool left = false;                 // the peer has sent kLeave

 private:
  struct Out {
    LinkHeader header;
    LinkAnswer answer;
  };
  int peer_;
  UniqueFd socket_;
  std::deque<Out> queue_;
  size_t written_ = 0;  // bytes of the first message that are out
  LinkHeader in_;
  size_t got_ = 0;  // bytes of the header, or of the payload, that have arrived
  std::byte* target_ = nullptr;
  bool in_payload_ = false;
  std::array<std::byte, 4096> dropped_;
};

}  // namespace ofsdp::fsdp
