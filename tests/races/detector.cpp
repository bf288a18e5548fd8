#include "tests/races/detector.h"

#include <utility>

#include "tests/emulator/cuda_runtime.h"

namespace ofsdp::races {

namespace {

constexpr unsigned kMaxThreads = 1024;
constexpr size_t kCopied = 16;  // bytes in a cp.async

constexpr size_t kWord = 4;
constexpr std::ptrdiff_t kMaxPadding = 64;

std::vector<emulator::SharedPart> shared_parts() {
  std::vector<emulator::SharedPart> parts;
  emulator::for_each_shared([&](const emulator::SharedPart& part) { parts.push_back(part); });
  std::ranges::sort(parts, {}, &emulator::SharedPart::begin);
  return parts;
}

// From the first variable to the end of the last; other static variables lie in between.
std::pair<unsigned char*, unsigned char*> span_of(const std::vector<emulator::SharedPart>& parts) {
  std::pair<unsigned char*, unsigned char*> span{parts.at(0).begin, parts.at(0).begin};
  for (const emulator::SharedPart& part : parts) {
    span.first = std::min(span.first, part.begin);
    span.second = std::max(span.second, part.begin + part.bytes);
  }
  return span;
}

bool is_atomic(Access kind) { return kind >= Access::kAtomicRead; }
bool writes(Access kind) { return kind == Access::kWrite || kind == Access::kAtomic; }

}  // namespace

Region::Region(const void* begin, size_t bytes)
    : begin_(begin),
      bytes_(bytes),
      reserved_(std::max<size_t>(bytes, 1) * sizeof(Cell)),
      cells_(static_cast<Cell*>(mmap(nullptr, reserved_, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
      splits_(bytes / kPage + 1) {}

void Region::split(size_t page) {
  const size_t half = granule(page) / 2;
  for (size_t i = page * kPage; i < (page + 1) * kPage; i += 2 * half) cells_[i + half] = cells_[i];
  ++splits_[page];
}

void Region::forget() { std::ranges::fill(splits_, uint8_t{0}); }

Detector::Detector(Region* device)
    : parts_(shared_parts()),
      span_(span_of(parts_)),
      shared_(span_.first, static_cast<size_t>(span_.second - span_.first)),
      known_shared_(static_cast<size_t>(span_.second - span_.first) / kWord + 1),
      device_(device),
      syncs_(kMaxThreads),
      seen_(kMaxThreads, std::vector<uint32_t>(emulator::kWarp)) {
  for (size_t i = 0; i < parts_.size(); ++i) {
    const emulator::SharedPart& part = parts_[i];
    unsigned char* end = part.begin + part.bytes;
    // Padding before the next part belongs to nobody.
    if (i + 1 < parts_.size() && parts_[i + 1].begin - end < kMaxPadding) {
      wall(end, parts_[i + 1].begin);
    }
    know(part.begin, end);
    if (part.wall) wall(part.begin, end);
  }
  emulator::observer = this;
}

void Detector::know(const unsigned char* begin, const unsigned char* end) {
  const auto first = static_cast<size_t>(begin - span_.first) / kWord;
  const size_t last = (static_cast<size_t>(end - span_.first) + kWord - 1) / kWord;
  std::fill(known_shared_.begin() + static_cast<std::ptrdiff_t>(first),
            known_shared_.begin() + static_cast<std::ptrdiff_t>(last), true);
}

void Detector::wall(const unsigned char* begin, const unsigned char* end) {
  if (begin >= end) return;
  know(begin, end);
  shared_.visit(begin, static_cast<size_t>(end - begin),
                [](Cell& c) { c.write = Stamp::of(kWallStretch, 0, 0, false); });
}

Detector::~Detector() { emulator::observer = nullptr; }

void Detector::launch_begins(const emulator::LaunchShape& shape) {
  launch_ = stretch_ + 1;
  kernel_ = shape.kernel;
  kernels_.insert(shape.kernel);
}

void Detector::block_begins() {
  block_ = ++stretch_;
  synced_ = true;
  forget_syncs();
}

void Detector::barrier() {
  ++stretch_;
  forget_syncs();
}

void Detector::forget_syncs() {
  if (!synced_) return;
  synced_ = false;
  std::ranges::fill(syncs_, 0u);
  for (auto& lanes : seen_) std::ranges::fill(lanes, 0u);
}

// Each lane in the mask has now met all that any of these lanes had met, and their accesses so far.
void Detector::warp_met(unsigned first, uint32_t mask) {
  synced_ = true;
  std::vector<uint32_t> all(emulator::kWarp);
  for (unsigned lane = 0; lane < emulator::kWarp; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    for (unsigned k = 0; k < emulator::kWarp; ++k)
      all[k] = std::max(all[k], seen_[first + lane][k]);
    all[lane] = std::max(all[lane], ++syncs_[first + lane]);
  }
  for (unsigned lane = 0; lane < emulator::kWarp; ++lane) {
    if ((mask >> lane & 1) != 0) seen_[first + lane] = all;
  }
}

bool Detector::ordered(Stamp earlier, Stamp now) const {
  if (earlier.stretch() < launch_) return true;
  if (earlier.stretch() < block_) return false;  // another block
  if (earlier.stretch() != now.stretch() || earlier.thread() == now.thread()) return true;
  return synced_ && earlier.thread() / emulator::kWarp == now.thread() / emulator::kWarp &&
         earlier.syncs() < seen_[now.thread()][earlier.thread() % emulator::kWarp];
}

void Detector::check(const Now& now, Stamp earlier, Access kind, uint32_t code) {
  if (now.shared && earlier.stretch() < block_) return;  // each block has separate shared memory
  if (ordered(earlier, now.stamp) || (earlier.atomic() && now.stamp.atomic())) return;
  Fault fault = Fault::kBetweenWarps;
  if (earlier.stretch() < block_) {
    fault = Fault::kBetweenBlocks;
  } else if (earlier.thread() / emulator::kWarp == now.stamp.thread() / emulator::kWarp) {
    fault = Fault::kInsideWarp;
  }
  report(fault, now, earlier, earlier.atomic() ? Access::kAtomic : kind, code);
}

// `other` has another block or, in this stretch, another thread than `read`.
void Detector::remember_read(Cell& cell, const Now& now) const {
  const Stamp last = cell.read;
  const bool again = last.stretch() == now.stamp.stretch() && last.thread() == now.stamp.thread();
  const bool other_block = cell.other.stretch() >= launch_ && cell.other.stretch() < block_;
  const bool useful = last.stretch() >= launch_ &&
                      (last.stretch() < block_ || last.stretch() == now.stamp.stretch());
  if (!again && !other_block && useful) {
    cell.other = last;
    cell.other_at = cell.read_at;
  }
  cell.read = now.stamp;
  cell.read_at = now.code;
}

void Detector::touch(Cell& cell, const Now& now) {
  if (cell.write.stretch() == kWallStretch) {
    return report(Fault::kBeyond, now, cell.write, Access::kWrite, 0);
  }
  if (now.shared && cell.copying >= block_) {
    return report(Fault::kCopying, now, cell.write, Access::kWrite, cell.write_at);
  }
  if (now.shared && now.kind != Access::kWrite && cell.write.stretch() < block_) {
    report(Fault::kNotWritten, now, cell.write, Access::kWrite, 0);
  }
  check(now, cell.write, Access::kWrite, cell.write_at);
  if (now.kind != Access::kWrite) remember_read(cell, now);
  if (!writes(now.kind)) return;
  check(now, cell.read, Access::kRead, cell.read_at);
  check(now, cell.other, Access::kRead, cell.other_at);
  cell.write = now.stamp;
  cell.write_at = now.code;
}

Region* Detector::region_of(const void* at) {
  if (device_->holds(at)) return device_;
  if (!shared_.holds(at)) return nullptr;
  const auto byte = static_cast<size_t>(static_cast<const unsigned char*>(at) - span_.first);
  return known_shared_[byte / kWord] ? &shared_ : nullptr;
}

void Detector::access(const void* at, size_t bytes, Access kind, const void* code) {
  if (emulator::running_thread < 0 || bytes == 0) return;
  Region* const region = region_of(at);
  if (region == nullptr) return;
  const auto thread = static_cast<unsigned>(emulator::running_thread);
  const Now now{Stamp::of(stretch_, thread, syncs_[thread], is_atomic(kind)), kind,
                static_cast<uint32_t>(reinterpret_cast<uintptr_t>(code)) - 1, region == &shared_};
  region->visit(at, bytes, [&](Cell& cell) { touch(cell, now); });
}

// The thread writes it; until it is awaited nobody, not even this thread, may look.
void Detector::copy_issued(const void* to, const void* from, size_t bytes, const void* code) {
  access(from, bytes, Access::kRead, code);
  access(to, kCopied, Access::kWrite, code);
  if (!shared_.holds(to)) return;
  shared_.visit(to, kCopied, [&](Cell& cell) { cell.copying = stretch_; });
}

void Detector::copy_awaited(const void* to, const void* code) {
  if (!shared_.holds(to)) return;
  shared_.visit(to, kCopied, [](Cell& cell) { cell.copying = 0; });
  access(to, kCopied, Access::kWrite, code);
}

void Detector::report(Fault fault, const Now& now, Stamp earlier, Access kind, uint32_t code) {
  if (!known_.insert({fault, kernel_, now.code, code}).second) return;
  findings_.push_back({fault, kernel_, now.kind, kind, now.code, code, now.stamp.thread(),
                       earlier.thread(), now.shared, blockIdx});
}

std::vector<Finding> Detector::take_findings() {
  known_.clear();
  return std::exchange(findings_, {});
}

}  // namespace ofsdp::races
