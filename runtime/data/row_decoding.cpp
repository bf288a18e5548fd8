#include "runtime/data/row_decoding.h"

#include <algorithm>

#include "runtime/data/dataset.h"

namespace ofsdp::runtime {

RowDecoding::RowDecoding(int threads, size_t scratch, size_t counted, Region memory,
                         MemoryLedger& ledger)
    : threads_(threads),
      scratch_(scratch),
      counted_(counted),
      memory_(std::move(memory)),
      ledger_(ledger),
      arena_(threads, /*with_caller=*/true) {
  ledger_.add(counted_);
}

Result<std::unique_ptr<RowDecoding>> RowDecoding::make(int threads, size_t scratch, size_t counted,
                                                       MemoryLedger& ledger) {
  const size_t each = align_up(scratch, kTensorAlignment), count = static_cast<size_t>(threads);
  OFSDP_ASSIGN_OR_RETURN(Region memory, Region::map(ledger, each * count, Region::Sharing::kPrivate,
                                                    "decoding of rows"));
  return std::unique_ptr<RowDecoding>(
      new RowDecoding(threads, each, counted * count, std::move(memory), ledger));
}

Status RowDecoding::run_rows(Rows& rows) {
  {
    const std::lock_guard lock(mutex_);
    rows_ = &rows;
  }
  arena_.run(std::min<int64_t>(threads_, rows.count), &run_thread, this);
  const std::lock_guard lock(mutex_);
  return std::move(rows.failure);
}

void RowDecoding::run_thread(void* of, int64_t thread) {
  auto& own = *static_cast<RowDecoding*>(of);
  std::unique_lock lock(own.mutex_);
  Rows& rows = *own.rows_;
  lock.unlock();
  for (int64_t i = rows.next++; i < rows.count; i = rows.next++) {
    Status status = rows.decode(rows.of, i, own.scratch(thread));
    if (status.ok()) continue;
    lock.lock();
    if (i < rows.failed) {
      rows.failed = i;
      rows.failure = std::move(status);
    }
    lock.unlock();
  }
  lock.lock();  // the caller sees this thread's rows
}

// The part of Dataset about columns that are decoded row by row.

size_t Dataset::decoding_bytes() const { return decoding_ ? decoding_->bytes() : 0; }

// A thread decodes one row of any column at a time: its scratch memory is that of the largest, a
// row as stored, and the row of a partner in float32.
Status Dataset::prepare_decoding(MemoryLedger& ledger) {
  size_t scratch = 0, library = 0;
  int threads = 0;
  for (const auto& column : columns_) {
    const RowDecoder* const decoder = column->file.decoder();
    if (decoder == nullptr) continue;
    const ColumnLayout& layout = column->file.layout();
    const auto numel = static_cast<size_t>(layout.row.numel());
    const bool mixes = column->spec.images->augmentation.mixes();
    const size_t partner = mixes ? align_up(numel * sizeof(float), kTensorAlignment) : 0;
    const size_t row = align_up(layout.row_bytes(), kTensorAlignment);
    scratch = std::max(scratch, partner + row + decoder->scratch_bytes());
    library = std::max(library, decoder->library_bytes());
    threads = std::max(threads, column->spec.images->threads);
  }
  if (threads == 0) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(decoding_, RowDecoding::make(threads, scratch, library, ledger));
  return ok_status();
}

Status Dataset::decode_rows(int column, std::span<const int64_t> samples, std::byte* dst) {
  const size_t row_bytes = bound_[static_cast<size_t>(column)].row_bytes();
  const bool mixes = mixing_ && mixing_->images == &*file_of(column).spec.images;
  return decoding_->run(std::ssize(samples), [&](int64_t i, std::span<std::byte> scratch) {
    const auto index = static_cast<size_t>(i);
    std::byte* const to = dst + index * row_bytes;
    OFSDP_RETURN_IF_ERROR(decode_row(column, samples[index], scratch, to));
    if (!mixes) return ok_status();
    return mix_row(column, samples[index], scratch, reinterpret_cast<float*>(to));
  });
}

Status Dataset::decode_row(int column, int64_t sample, std::span<std::byte> scratch,
                           std::byte* dst) const {
  const ColumnFile& file = file_of(column).file;
  const Converter& converter = bindings_[static_cast<size_t>(column)].converter;
  const ColumnLayout& layout = file.layout();
  const size_t bytes = layout.row_bytes();
  const int64_t row = row_of(sample);
  std::optional<uint64_t> draws;
  if (augment_seed_) draws = row_key(*augment_seed_, epoch_, row);
  if (converter.is_copy()) return file.decoder()->decode(row, draws, {dst, bytes}, scratch);
  const auto stored = scratch.first(bytes);
  OFSDP_RETURN_IF_ERROR(file.decoder()->decode(row, draws, stored,
                                               scratch.subspan(align_up(bytes, kTensorAlignment))));
  const auto count = static_cast<size_t>(layout.row.numel());
  const size_t good = converter.run(stored.data(), count, dst);
  return good == count ? ok_status()
                       : wrong_value(column, row, static_cast<int64_t>(good),
                                     stored.data() + good * dtype_size(layout.dtype));
}

// Random changes, for rows that mix.

namespace {

void blend(float* row, const float* partner, size_t count, float kept) {
  const float other = 1 - kept;
  for (size_t i = 0; i < count; ++i) {
    const float own = row[i] * kept, added = partner[i] * other;
    row[i] = own + added;
  }
}

// Rows of an image that cutmix pastes: `count` adjacent floats every `stride`, from `first`.
void paste(float* row, const float* partner, const PixelBox& box, int64_t width, int64_t channels) {
  for (int64_t y = box.y; y < box.y + box.height; ++y) {
    const int64_t first = (y * width + box.x) * channels;
    std::copy_n(partner + first, box.width * channels, row + first);
  }
}

}  // namespace

namespace {

RowMixing mixing_of(const ImageSource& images, const Shape& row) {
  if (images.height) return {&images, *images.height, *images.width};
  const int first = images.layout == ImageLayout::kHwc ? 0 : 1;
  return {&images, row[first], row[first + 1]};
}

}  // namespace

Status Dataset::augment(uint64_t seed) {
  augment_seed_ = seed;
  for (const Binding& binding : bindings_) {
    const Column& column = *columns_[binding.column];
    const bool mixes = column.spec.images && column.spec.images->augmentation.mixes();
    if (!mixes || mixing_) continue;
    const Shape& row = column.file.layout().row;
    OFSDP_REJECT_IF(!column.spec.images->height && row.rank() != 3,
                    "{}: column '{}': mixup and cutmix need the key size: [height, width]",
                    column.file.path(), column.spec.name);
    mixing_ = mixing_of(*column.spec.images, row);
  }
  return mixing_ ? check_mixing() : ok_status();
}

// Labels must mix as images do.
Status Dataset::check_mixing() const {
  for (size_t i = 0; i < bindings_.size(); ++i) {
    const Column& column = file_of(static_cast<int>(i));
    const bool own = column.spec.images && &*column.spec.images == mixing_->images;
    OFSDP_REJECT_IF(own && bound_[i].dtype != DType::kFloat32,
                    "{}: column '{}': mixup and cutmix mix float32, found an input of {}",
                    column.file.path(), column.spec.name, dtype_name(bound_[i].dtype));
    OFSDP_REJECT_IF(
        !own && bindings_[i].one_hot == 0,
        "{}: column '{}': mixup and cutmix mix labels too: expected one_hot: CLASSES in "
        "each other column, and a loss over floats, found none",
        column.file.path(), column.spec.name);
  }
  return ok_status();
}

RowMix Dataset::mix_of(int64_t sample) const {
  if (!mixing_) return {};
  const uint64_t key = row_key(*augment_seed_, epoch_, row_of(sample));
  RowMix mix =
      draw_mix(key, samples_, mixing_->width, mixing_->height, mixing_->images->augmentation);
  if (mix.partner >= 0) mix.partner = first_ + mix.partner * stride_;
  return mix;
}

Status Dataset::mix_row(int column, int64_t sample, std::span<std::byte> scratch,
                        float* dst) const {
  const RowMix mix = mix_of(sample);
  if (mix.partner < 0) return ok_status();
  const int64_t width = mixing_->width, pixels = width * mixing_->height;
  const int64_t count = file_of(column).file.layout().row.numel();
  auto* const partner = reinterpret_cast<float*>(scratch.data());
  const auto rest =
      scratch.subspan(align_up(static_cast<size_t>(count) * sizeof(float), kTensorAlignment));
  OFSDP_RETURN_IF_ERROR(
      decode_row(column, mix.partner, rest, reinterpret_cast<std::byte*>(partner)));
  const int64_t channels = count / pixels;
  if (mix.box.width == 0) {
    blend(dst, partner, static_cast<size_t>(count), mix.kept);
  } else if (mixing_->images->layout == ImageLayout::kHwc) {
    paste(dst, partner, mix.box, width, channels);
  } else {
    for (int64_t c = 0; c < channels; ++c) {
      paste(dst + c * pixels, partner + c * pixels, mix.box, width, 1);
    }
  }
  return ok_status();
}

Result<size_t> Dataset::class_of(int column, int64_t sample) {
  const int64_t row = row_of(sample), classes = bindings_[static_cast<size_t>(column)].one_hot;
  int64_t label = 0;
  OFSDP_RETURN_IF_ERROR(read_range(column, row, 1, reinterpret_cast<std::byte*>(&label)));
  const BoundColumn& bound = bound_[static_cast<size_t>(column)];
  OFSDP_REJECT_IF(label < 0 || label >= classes,
                  "{}: column '{}', sample {}: expected a class of 0..{}, found {}", bound.source,
                  bound.name, row, classes - 1, label);
  return static_cast<size_t>(label);
}

Status Dataset::read_one_hot(int column, std::span<const int64_t> samples, float* dst) {
  const auto classes = static_cast<size_t>(bindings_[static_cast<size_t>(column)].one_hot);
  for (const int64_t sample : samples) {
    const RowMix mix = mix_of(sample);
    OFSDP_ASSIGN_OR_RETURN(const size_t own, class_of(column, sample));
    std::fill_n(dst, classes, 0.0f);
    dst[own] = mix.kept;
    if (mix.partner >= 0) {
      OFSDP_ASSIGN_OR_RETURN(const size_t other, class_of(column, mix.partner));
      dst[other] += 1 - mix.kept;
    }
    dst += classes;
  }
  return ok_status();
}

// A class becomes a row of floats.
Status Dataset::bind_one_hot(const WantedColumn& wanted, const Column* column) {
  const ColumnLayout& layout = column->file.layout();
  const int64_t classes = column->spec.one_hot;
  auto converter = Converter::between(layout.dtype, DType::kInt64, {}, layout.of_text,
                                      /*classes=*/true);
  OFSDP_REJECT_IF(!converter || layout.row.numel() != 1 || column->file.decoder() != nullptr,
                  "{}: column '{}': one_hot: expected a class in each row, found {}{}",
                  column->file.path(), wanted.name, dtype_name(layout.dtype), layout.row.text());
  const bool fits = wanted.dims.size() == 1 && (wanted.dims[0] < 0 || wanted.dims[0] == classes);
  OFSDP_REJECT_IF(
      wanted.dtype != DType::kFloat32 || !fits,
      "{}: column '{}': one_hot makes float32 of [{}], found an input of {} with {} axes",
      column->file.path(), wanted.name, classes, dtype_name(wanted.dtype), wanted.dims.size());
  if (!column->file.class_labels().empty()) {
    converter->name_classes(column->file.class_labels(), DType::kInt64);
  }
  const auto index = std::ranges::find(columns_, column, &std::shared_ptr<Column>::get);
  bindings_.push_back(
      {static_cast<size_t>(index - columns_.begin()), *std::move(converter), 0, classes});
  bound_.push_back({wanted.name, column->file.path(), wanted.dtype, Shape{classes}});
  return ok_status();
}

}  // namespace ofsdp::runtime
