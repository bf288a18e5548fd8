// The messages of ranks of different hosts while they train, over the connections of the
// rendezvous. A rank asks the one rank of another host that serves it; that one answers when what
// was asked for is there. The asker says how much it has room for, so nothing arrives unasked and
// a connection is never blocked by something that nobody takes.
//
//   kShard     bytes [offset, offset + bytes) of the segment of `rank`
//   kPartial   elements [offset / width ...), `numel` of them, of the slots of a channel, summed in
//              float32 over the group's ranks of the host once they have posted `round`; as they
//              are when it is one rank
//   kSummed    as kShard, once `rank` has summed its span of the channel `round` times
//   kExchange  the `numel` doubles of each rank of the host for exchange `round`
//   kData      the answer to request `id`: `bytes` follow, or go through the payload engine
//   kGone      request `id` cannot be answered: `rank` has left
//   kFailed    the run failed: `value` as in RunFlags::failed
//   kClaim     may `rank` print the message of the failure? kVerdict: value 1, yes
//   kWho       for whom is `rank` waiting, or request? kBlame: `rank`, which waits too if `value`
//              is 1. With `value` 1: which rank of the host waits for nobody? kBlame: `rank`, or -1
//   kLeave     the sender is done in order
//
#pragma once

#include <cstddef>
#include <cstdint>

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

}  // namespace ofsdp::fsdp
