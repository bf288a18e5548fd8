#include "runtime/data/loader.h"

#include "kernels/core/memory.h"

namespace ofsdp::runtime {
namespace {

size_t column_bytes(const BoundColumn& column, int64_t batch_size) {
  return align_up(static_cast<size_t>(batch_size) * column.row_bytes(), kTensorAlignment);
}

size_t index_bytes(int64_t batch_size) {
  return align_up(static_cast<size_t>(batch_size) * sizeof(int64_t), kTensorAlignment);
}

}  // namespace

size_t Loader::staging_bytes(const RowSource& source, int64_t batch_size) {
  size_t slot = index_bytes(batch_size);
  for (const BoundColumn& column : source.columns()) slot += column_bytes(column, batch_size);
  return slot * kStagingSlots;
}

Loader::Loader(RowSource& source, const Sampler& sampler, std::vector<LabelRule> labels,
               std::span<std::byte> staging, const RowCuts* cuts)
    : source_(source),
      sampler_(sampler),
      labels_(std::move(labels)),
      cuts_(cuts),
      slots_(kStagingSlots),
      kept_in_update_(labels_.size()),
      counted_in_update_(labels_.size()),
      reading_("ofsdp-data", "the reader of data", [this] { fill_free_slots(); }) {
  const size_t needed = staging_bytes(source, sampler.options().batch_size);
  OFSDP_CHECK(staging.size() >= needed, "{} of {} bytes", staging.size(), needed);
  lay_out(staging);
  request_fill();  // nothing is read yet: reports whether reading can start
}

Loader::~Loader() { reading_.stop(); }

void Loader::lay_out(std::span<std::byte> staging) {
  const int64_t batch_size = sampler_.options().batch_size;
  std::byte* at = staging.data();
  for (Slot& slot : slots_) {
    slot.samples = {reinterpret_cast<int64_t*>(at), static_cast<size_t>(batch_size)};
    at += index_bytes(batch_size);
    for (const BoundColumn& column : source_.columns()) {
      slot.columns.push_back(at);
      at += column_bytes(column, batch_size);
    }
    slot.batch.columns = slot.columns;
    slot.kept.resize(labels_.size());
    slot.kept_in_update.resize(labels_.size());
    slot.counted_in_update.resize(labels_.size());
    slot.batch.kept = slot.kept;
    slot.batch.kept_in_update = slot.kept_in_update;
    slot.batch.counted_in_update = slot.counted_in_update;
  }
}

void Loader::start(int64_t begin_update, int64_t end_update) {
  std::unique_lock lock(mutex_);
  running_ = false;
  ready_.wait(lock, [this] { return !filling_; });
  update_ = begin_update;
  end_update_ = end_update;
  micro_ = filled_ = taken_ = released_ = 0;
  failure_ = Status();
  running_ = begin_update < end_update;
  lock.unlock();
  request_fill();
}

void Loader::request_fill() {
  Status requested = reading_.request();
  if (requested.ok()) return;
  const std::lock_guard lock(mutex_);
  failure_ = std::move(requested);
  running_ = false;
}

Result<const Batch*> Loader::next() {
  std::unique_lock lock(mutex_);
  OFSDP_CHECK(taken_ - released_ < kStagingSlots, "next() without release()");
  ready_.wait(lock, [this] { return taken_ < filled_ || !running_; });
  if (taken_ < filled_) {
    const Slot& slot = slots_[static_cast<size_t>(taken_++ % kStagingSlots)];
    return &slot.batch;
  }
  // A copy, so that the next call returns the same error.
  if (!failure_.ok()) return Status(failure_.kind(), failure_.message());
  return nullptr;
}

void Loader::release() {
  {
    std::lock_guard lock(mutex_);
    OFSDP_CHECK(released_ < taken_, "release() without next()");
    ++released_;
  }
  request_fill();
}

bool Loader::may_fill() const { return running_ && filled_ - released_ < kStagingSlots; }

void Loader::fill_free_slots() {
  std::unique_lock lock(mutex_);
  while (may_fill()) {
    Slot& slot = slots_[static_cast<size_t>(filled_ % kStagingSlots)];
    filling_ = true;
    lock.unlock();
    Status status = fill(slot);
    lock.lock();
    finish_fill(std::move(status));
    ready_.notify_one();
  }
}

// REQUIRES: mutex_ is held. If start() has cleared running_ meanwhile, the filled slot is dropped.
void Loader::finish_fill(Status status) {
  filling_ = false;
  if (!running_) return;
  if (!status.ok()) {
    failure_ = std::move(status);
    running_ = false;
    return;
  }
  ++filled_;
  if (++micro_ == sampler_.options().grad_accum) {
    micro_ = 0;
    ++update_;
  }
  running_ = update_ < end_update_;
}

Status Loader::fill(Slot& slot) {
  source_.begin_epoch(sampler_.epoch_of(update_));
  if (micro_ == 0 && sampler_.options().grad_accum > 1) OFSDP_RETURN_IF_ERROR(count_update(slot));
  Batch& batch = slot.batch;
  batch.epoch = sampler_.epoch_of(update_);
  batch.update = update_;
  batch.micro = micro_;
  batch.size = sampler_.micro_batch(update_, micro_, slot.samples);
  batch.sample_index = slot.samples.first(static_cast<size_t>(batch.size));
  for (int column = 0; column < static_cast<int>(slot.columns.size()); ++column) {
    OFSDP_RETURN_IF_ERROR(read_column(slot, column));
  }
  OFSDP_RETURN_IF_ERROR(count(slot));
  OFSDP_RETURN_IF_ERROR(cut(slot));
  const bool alone = sampler_.options().grad_accum == 1;
  for (size_t i = 0; i < labels_.size(); ++i) {
    slot.kept_in_update[i] = alone ? slot.kept[i] : kept_in_update_[i];
    slot.counted_in_update[i] = alone ? slot.kept[i] > 0 : counted_in_update_[i];
  }
  return ok_status();
}

// Reads labels for all micro-batches in the update; filling the slot overwrites them.
Status Loader::count_update(Slot& slot) {
  std::ranges::fill(kept_in_update_, 0.0);
  std::ranges::fill(counted_in_update_, 0);
  for (int64_t micro = 0; micro < sampler_.options().grad_accum; ++micro) {
    slot.batch.size = sampler_.micro_batch(update_, micro, slot.samples);
    slot.batch.sample_index = slot.samples.first(static_cast<size_t>(slot.batch.size));
    for (const LabelRule& rule : labels_) {
      if (rule.column >= 0) OFSDP_RETURN_IF_ERROR(read_column(slot, rule.column));
    }
    OFSDP_RETURN_IF_ERROR(count(slot));
    for (size_t i = 0; i < labels_.size(); ++i) {
      kept_in_update_[i] += slot.kept[i];
      counted_in_update_[i] += slot.kept[i] > 0;
    }
  }
  return ok_status();
}

Status Loader::read_column(Slot& slot, int column) {
  return source_.read_rows(column, slot.batch.sample_index,
                           slot.columns[static_cast<size_t>(column)]);
}

Status Loader::count(Slot& slot) const {
  for (size_t i = 0; i < labels_.size(); ++i) {
    slot.kept[i] = static_cast<double>(slot.batch.size);
    if (labels_[i].column < 0) continue;
    const auto column = static_cast<size_t>(labels_[i].column);
    OFSDP_ASSIGN_OR_RETURN(slot.kept[i], count_kept(labels_[i], source_.columns()[column],
                                                    slot.batch.sample_index, slot.columns[column]));
  }
  return ok_status();
}

Status Loader::cut(Slot& slot) const {
  Batch& batch = slot.batch;
  const RowCuts::Cut* const cut = cuts_ == nullptr ? nullptr : cuts_->find(batch.sample_index);
  batch.length = cut == nullptr ? 0 : cut->length;
  if (cut == nullptr) return {};
  for (size_t i = 0; i < slot.columns.size(); ++i) {
    const BoundColumn& column = source_.columns()[i];
    if (column.row == cut->rows[i]) continue;
    OFSDP_RETURN_IF_ERROR(check_cut(slot, i, *cut));
    cut_rows(slot.columns[i], batch.size, column.row, cut->rows[i], dtype_size(column.dtype));
  }
  return {};
}

// Labels that count and masks that let something pass must not be cut off.
Status Loader::check_cut(const Slot& slot, size_t column, const RowCuts::Cut& cut) const {
  const BoundColumn& bound = source_.columns()[column];
  const auto rule = std::ranges::find(labels_, static_cast<int>(column), &LabelRule::column);
  const bool label = rule != labels_.end();
  if (bound.row.rank() != 1 || !(label || is_mask(bound.name))) return {};
  const auto ignored = label ? std::optional(rule->range.ignore_index) : std::nullopt;
  const std::byte* row = slot.columns[column];
  for (const int64_t sample : slot.batch.sample_index) {
    OFSDP_RETURN_IF_ERROR(check_unused(bound, sample, row, cut.rows[column][0],
                                       cuts_->order->length(sample), ignored, "--bucket-by"));
    row += bound.row_bytes();
  }
  return {};
}

}  // namespace ofsdp::runtime
