#include "tests/device/counting_groups.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "fsdp/comm/communicator.h"
#include "kernels/core/memory.h"
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

using ofsdp::counting::Collective;
using ofsdp::counting::kMaxGiven;
using ofsdp::counting::kMaxPlaces;
using ofsdp::counting::SharedGroup;

namespace {

size_t header_bytes() { return ofsdp::region_bytes(sizeof(SharedGroup)); }
size_t group_bytes(int count) {
  return header_bytes() + 2 * kMaxGiven * static_cast<size_t>(count);
}

}  // namespace

std::byte* ofsdp_group::given(int p, uint64_t number) const {
  const size_t index = 2 * static_cast<size_t>(p) + number % 2;
  return reinterpret_cast<std::byte*>(shared) + header_bytes() + index * kMaxGiven;
}

// A place is free when all ranks have ended the collective before last.
bool ofsdp_group::may_begin() const {
  const uint64_t number = mine().begun + 1;
  if (aborted) return true;
  if (number == stuck_at) return false;
  return std::all_of(shared->places, shared->places + count,
                     [&](const auto& p) { return p.ended + 2 >= number; });
}

bool ofsdp_group::may_end() const {
  if (aborted) return true;
  return std::all_of(shared->places, shared->places + count,
                     [&](const auto& p) { return p.begun >= mine().begun; });
}

bool ofsdp_group::wanted() const {
  if (left) return false;
  const auto& me = mine();
  return std::any_of(shared->places, shared->places + count,
                     [&](const auto& p) { return p.begun > me.begun || p.ended > me.ended; });
}

// Runs work for other ranks, only as far as they need.
void ofsdp::counting::CountingDevice::serve() {
  constexpr std::chrono::microseconds kPause{200};
  const auto is_wanted = [this] {
    return std::ranges::any_of(groups, [](const ofsdp_group* g) { return g->wanted(); });
  };
  std::unique_lock lock(mutex);
  while (!closing) {
    if (is_wanted() && !capturing()) (void)run_until([&] { return !is_wanted(); }, false);
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

void ofsdp::counting::CountingDevice::stop_serving() {
  {
    const std::lock_guard lock(mutex);
    closing = true;
  }
  if (server.joinable()) server.join();
  for (ofsdp_group* group : groups) {
    munmap(group->shared, group_bytes(group->count));
    delete group;
  }
  groups.clear();
}

namespace ofsdp::counting {

uint64_t Collective::signature() const {
  return static_cast<uint64_t>(kind) << 60 | static_cast<uint64_t>(captured) << 59 |
         static_cast<uint64_t>(dtype) << 48 | static_cast<uint64_t>(count);
}

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

namespace {

size_t width(const Collective& c) {
  const bool bytes = c.kind == Collective::Kind::kGather || c.kind == Collective::Kind::kParts;
  return bytes ? 1 : dtype_size(c.dtype);
}

size_t bytes_given(const Collective& c, int ranks) {
  const bool to_each = c.kind == Collective::Kind::kScatter || c.kind == Collective::Kind::kParts;
  const size_t parts = to_each ? static_cast<size_t>(ranks) : 1;
  return static_cast<size_t>(c.count) * width(c) * parts;
}

Status give(ofsdp_group* group, const Collective& c) {
  if (group->aborted) return fault("the group was aborted");
  const uint64_t number = group->mine().begun + 1;
  if (number == group->fails_at) return fault("an illegal address");
  std::byte* const given = group->given(group->place, number);
  if (c.kind == Collective::Kind::kParts) {
    const auto bytes = static_cast<size_t>(c.count);
    for (size_t p = 0; p < c.offsets.size(); ++p) {
      std::memcpy(given + p * bytes, c.src + c.offsets[p], bytes);
    }
  } else {
    std::memcpy(given, c.src, bytes_given(c, group->count));
  }
  group->mine().signature[number % 2] = c.signature();
  group->mine().begun = number;
  return {};
}

template <typename T, typename F>
void fold(const std::vector<const std::byte*>& sources, const Collective& c, F f) {
  for (int64_t i = 0; i < c.count; ++i) {
    T value = reinterpret_cast<const T*>(sources[0])[i];
    for (size_t s = 1; s < sources.size(); ++s) {
      value = f(value, reinterpret_cast<const T*>(sources[s])[i]);
    }
    reinterpret_cast<T*>(c.dst)[i] = value;
  }
}

// Sums in float32, rounded once to the element type.
void sum_floats(const std::vector<const std::byte*>& sources, const Collective& c) {
  std::vector<float> sum(static_cast<size_t>(c.count));
  sum_in_rank_order(sources, c.dtype, c.count, sum.data());
  convert_elements(reinterpret_cast<const std::byte*>(sum.data()), DType::kFloat32, c.dst, c.dtype,
                   c.count);
}

void take(const ofsdp_group& group, const Collective& c, uint64_t number) {
  const size_t bytes = static_cast<size_t>(c.count) * width(c);
  std::vector<const std::byte*> sources;
  for (int p = 0; p < group.count; ++p) {
    const std::byte* given = group.given(p, number);
    const bool to_each = c.kind == Collective::Kind::kScatter || c.kind == Collective::Kind::kParts;
    if (to_each) given += static_cast<size_t>(group.place) * bytes;
    sources.push_back(given);
  }
  if (c.kind == Collective::Kind::kGather || c.kind == Collective::Kind::kParts) {
    for (size_t p = 0; p < sources.size(); ++p) std::memcpy(c.dst + p * bytes, sources[p], bytes);
  } else if (c.dtype == DType::kFloat64) {
    fold<double>(sources, c, [](double a, double b) { return a + b; });
  } else if (c.dtype == DType::kInt32) {
    fold<int32_t>(sources, c, [](int32_t a, int32_t b) { return std::max(a, b); });
  } else {
    sum_floats(sources, c);
  }
}

Status end(CountingDevice* device, ofsdp_group* group, const Collective& c) {
  if (group->aborted) return fault("the group was aborted");
  const uint64_t number = group->mine().begun;
  for (int p = 0; p < group->count; ++p) {
    if (group->shared->places[p].signature[number % 2] == c.signature()) continue;
    (void)device->violation(format_text("collective {}: places {} and {} differ in what they call",
                                        number, group->place, p));
    return fault("ranks call different collectives");
  }
  take(*group, c, number);
  group->mine().ended = number;
  return {};
}

// The variable's number, "place:number", for this place; 0: none.
uint64_t number_at(int place, const char* name) {
  int of = -1;
  unsigned long number = 0;
  const bool known = std::sscanf(variable(name), "%d:%lu", &of, &number) == 2;
  return known && of == place ? number : 0;
}

// Waits for `met`, as long as the patience lasts.
bool wait_for(const ofsdp_patience& patience, const std::function<bool()>& met) {
  while (!met()) {
    if (patience.goes_on(patience.context) == 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace

Status CountingDevice::collective(ofsdp_stream* stream, ofsdp_group* group, Collective c) {
  const bool parts = c.kind == Collective::Kind::kParts;
  const bool sums = c.kind != Collective::Kind::kGather && !parts;
  const size_t gets =
      static_cast<size_t>(c.count) * width(c) * (sums ? 1 : static_cast<size_t>(group->count));
  for (const size_t offset : c.offsets) {
    const auto bytes = static_cast<size_t>(c.count);
    if (!holds(c.src + offset, bytes, false, "a collective's part")) return refused();
  }
  if (!holds(c.src, parts ? 0 : bytes_given(c, group->count), false, "a collective's source") ||
      !holds(c.dst, gets, false, "a collective's destination")) {
    return refused();
  }
  if (bytes_given(c, group->count) > kMaxGiven) return violation("too much is given");
  c.captured = stream->capture != nullptr;
  if (c.captured) stream->capture->groups.insert(group);
  ++counts[c.captured ? "captured_collectives" : "collectives"];
  using Kind = Operation::Kind;
  (void)push(stream, {Kind::kWork, [=] { return give(group, c); }, nullptr, 0,
                      [=] { return group->may_begin(); }, nullptr});
  return push(stream, {Kind::kWork, [=, this] { return end(this, group, c); }, nullptr, 0,
                       [=] { return group->may_end(); }, nullptr});
}

Status CountingDevice::all_gather(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                                  void* dst, size_t bytes) {
  const std::lock_guard lock(mutex);
  return collective(stream, group,
                    {Collective::Kind::kGather, static_cast<const std::byte*>(src),
                     static_cast<std::byte*>(dst), DType::kUndefined, static_cast<int64_t>(bytes)});
}

Status CountingDevice::reduce_scatter(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                                      void* dst, int32_t dtype, int64_t count) {
  const std::lock_guard lock(mutex);
  return collective(stream, group,
                    {Collective::Kind::kScatter, static_cast<const std::byte*>(src),
                     static_cast<std::byte*>(dst), static_cast<DType>(dtype), count});
}

Status CountingDevice::all_reduce(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                                  void* dst, int32_t dtype, int64_t count, int32_t reduction) {
  const std::lock_guard lock(mutex);
  const bool largest = reduction == OFSDP_LARGEST;
  if (largest != (static_cast<DType>(dtype) == DType::kInt32)) {
    return violation("an all-reduce that nothing needs");
  }
  return collective(stream, group,
                    {largest ? Collective::Kind::kLargest : Collective::Kind::kSum,
                     static_cast<const std::byte*>(src), static_cast<std::byte*>(dst),
                     static_cast<DType>(dtype), count});
}

Status CountingDevice::exchange_parts(ofsdp_stream* stream, ofsdp_group* group, const void* src,
                                      const size_t* offsets, int places, void* dst, size_t bytes) {
  const std::lock_guard lock(mutex);
  if (places != group->count) return violation("parts for other places than a group has");
  return collective(
      stream, group,
      {Collective::Kind::kParts, static_cast<const std::byte*>(src), static_cast<std::byte*>(dst),
       DType::kUndefined, static_cast<int64_t>(bytes), std::vector(offsets, offsets + places)});
}

Status CountingDevice::mark(ofsdp_stream* stream, int64_t* pinned, int64_t value) {
  const std::lock_guard lock(mutex);
  if (!holds(pinned, sizeof(value), true, "a mark")) return refused();
  ++counts["marks"];
  return push(stream, {Operation::Kind::kWork,
                       [=] {
                         *pinned = value;
                         return Status{};
                       },
                       nullptr, 0, nullptr, nullptr});
}

// Place 0 makes the file; once all have it, it needs no name.
Result<ofsdp_group*> CountingDevice::open_group(const std::string& name, int at, int count,
                                                const ofsdp_patience& patience) {
  if (count > kMaxPlaces) return fault("too many ranks");
  int fd = -1;
  const auto open = [&] {
    const int flags = at == 0 ? O_CREAT | O_EXCL | O_RDWR : O_RDWR;
    fd = shm_open(name.c_str(), flags, 0600);
    if (fd < 0) return false;
    if (at == 0) return ftruncate(fd, static_cast<off_t>(group_bytes(count))) == 0;
    const bool whole = lseek(fd, 0, SEEK_END) == static_cast<off_t>(group_bytes(count));
    if (!whole) ::close(fd);
    return whole;
  };
  if (!wait_for(patience, open)) return fault("gave up waiting for a group's first rank");
  void* data = mmap(nullptr, group_bytes(count), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (data == MAP_FAILED) return fault("no memory for a group");
  auto* group = new ofsdp_group;
  group->name = name;
  group->shared = static_cast<SharedGroup*>(data);
  group->place = at;
  group->count = count;
  group->patience = patience;
  ++group->shared->joined;
  const bool met = wait_for(patience, [&] { return group->shared->joined == count; });
  if (at == 0) shm_unlink(name.c_str());
  groups.push_back(group);
  if (met) return group;
  group->aborted = group->left = true;
  return fault("gave up waiting for the ranks of a group");
}

uint64_t CountingDevice::identity() const {
  return variable("COUNTING_DEVICE_SHARED")[0] != 0 ? 1u << 12
                                                    : static_cast<uint64_t>(getpid()) << 12;
}

Status CountingDevice::can_join(int sharing, std::string& engine) const {
  const char* why = variable(sharing > 1 ? "COUNTING_DEVICE_SHARED" : "COUNTING_DEVICE_ALONE");
  if (why[0] != 0) return fault("{}", why);
  engine = "ranks in shared memory";
  return {};
}

Status CountingDevice::make_group_key(void* key) {
  std::snprintf(static_cast<char*>(key), OFSDP_GROUP_KEY_BYTES, "/ofsdp-counting-%d", getpid());
  return {};
}

Result<ofsdp_group*> CountingDevice::join_group(const void* key, int at, int count,
                                                const ofsdp_patience& patience) {
  const std::lock_guard lock(mutex);
  OFSDP_ASSIGN_OR_RETURN(ofsdp_group* const group,
                         open_group(static_cast<const char*>(key), at, count, patience));
  place = at;
  group->stuck_at = number_at(place, "COUNTING_DEVICE_STUCK");
  group->fails_at = number_at(place, "COUNTING_DEVICE_FAILS");
  server = std::thread([this] { serve(); });
  return group;
}

// Every rank publishes the colour, and sees which ranks have the same.
Result<ofsdp_group*> CountingDevice::split_group(ofsdp_group* from, int color, int at) {
  const std::lock_guard lock(mutex);
  const uint64_t number = ++from->splits;
  from->mine().color = color;
  from->mine().split_place = at;
  from->mine().splits = number;
  auto* const places = from->shared->places;
  const auto said = [&](uint64_t n) {
    return [=] {
      return std::all_of(places, places + from->count, [&](auto& p) { return p.splits >= n; });
    };
  };
  if (!wait_for(from->patience, said(number))) return fault("gave up waiting for a split");
  const auto count = static_cast<int>(
      std::count_if(places, places + from->count, [&](const auto& p) { return p.color == color; }));
  const std::string name = format_text("{}-{}-{}", from->name, number, color);
  from->mine().splits = ++from->splits;  // so nobody starts another before all have seen this one
  if (!wait_for(from->patience, said(from->splits))) return fault("gave up waiting for a split");
  return open_group(name, at, count, from->patience);
}

void CountingDevice::leave_group(ofsdp_group* group) {
  const std::lock_guard lock(mutex);
  group->left = true;
}

// As in NCCL: the abort takes effect at once. It returns only when all groups are being aborted (it
// frees memory, which waits for all kernels) and no graph holds collectives of the group.
void CountingDevice::abort_group(ofsdp_group* group) {
  constexpr std::chrono::milliseconds kPause{1};
  const bool hangs = variable("COUNTING_DEVICE_ABORT_HANGS")[0] != 0;
  const auto may_end = [&] {
    const bool all =
        std::ranges::all_of(groups, [](const auto* g) { return g->aborted || g->left; });
    return all && !hangs &&
           std::ranges::none_of(graphs, [&](const auto* g) { return g->groups.contains(group); });
  };
  std::unique_lock lock(mutex);
  ++counts["aborts"];
  group->aborted = true;
  while (!may_end()) {
    lock.unlock();
    std::this_thread::sleep_for(kPause);
    lock.lock();
  }
}

Status CountingDevice::make_known(ofsdp_group*, void* data, size_t bytes, bool) {
  const std::lock_guard lock(mutex);
  return holds(data, bytes, false, "memory made known") ? Status{} : refused();
}

}  // namespace ofsdp::counting
