#include "runtime/data/image_column.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "kernels/base/status.h"
#include "kernels/core/memory.h"
#include "runtime/data/augment.h"
#include "runtime/data/image_list.h"
#include "runtime/data/images/resize.h"

namespace ofsdp::runtime {
namespace {

// How files become rows.
struct ImageForm {
  int64_t height = 0, width = 0;
  int channels = 1;
  ImageLayout layout = ImageLayout::kChw;
  Augmentation augmentation = {};

  Shape shape() const {
    return layout == ImageLayout::kChw ? Shape{channels, height, width}
                                       : Shape{height, width, channels};
  }
  size_t bytes() const { return static_cast<size_t>(height * width * channels); }
};

Status read_sample(const ImageView& files, int64_t row, std::span<std::byte> dst) {
  Result<ByteSource> source = ByteSource::open(files.path(row));
  OFSDP_FAULT_IF(!source.ok(), "{}", source.error().message());
  const uint64_t offset = files.entry(row).offset, end = offset + dst.size();
  const bool member = files.entry(row).name != files.entry(row).path;
  OFSDP_FAULT_IF(source->size() < end || (!member && source->size() != end),
                 "{}: expected {} bytes as before the first step, found {}", source->path(), end,
                 source->size());
  return source->read(offset, dst);
}

class ImageRows : public RowDecoder {
 public:
  ImageRows(const ImageView& files, const ImageForm& form)
      : files_(files), form_(form), limits_(files.limits(form.channels)) {}

  size_t scratch_bytes() const override {
    return align_up(limits_.file_bytes, kTensorAlignment) +
           align_up(limits_.pixel_bytes, kTensorAlignment) +
           align_up(form_.bytes(), kTensorAlignment) + align_up(resize_scratch(), kTensorAlignment);
  }
  size_t library_bytes() const override { return limits_.codec_bytes; }

  Status decode(int64_t row, std::optional<uint64_t> draws, std::span<std::byte> dst,
                std::span<std::byte> scratch) const override {
    const ImageView::Entry& entry = files_.entry(row);
    const ImageHeader& header = entry.header;
    const auto file = take(scratch, entry.bytes, limits_.file_bytes);
    const auto pixels = take(scratch, 0, limits_.pixel_bytes).data();
    const auto resized = take(scratch, 0, form_.bytes()).data();
    OFSDP_RETURN_IF_ERROR(read_sample(files_, row, file));
    OFSDP_RETURN_IF_ERROR(decode_image(files_.name(row), file, header, pixels));
    convert_pixels(pixels, header.pixels(), header.channels, form_.channels);
    const Augmentation& changes = form_.augmentation;
    const bool planes = form_.layout == ImageLayout::kChw && form_.channels > 1;
    std::byte* const made = planes ? resized : dst.data();
    resize_image(cropped(pixels, header, draws), form_.channels, form_.width, form_.height, made,
                 scratch);
    if (draws && flips(*draws, changes)) mirror(made);
    if (planes) split_channels(resized, dst.data());
    return ok_status();
  }

 private:
  size_t resize_scratch() const {
    return resize_bytes(limits_.width, limits_.height, form_.width, form_.height, form_.channels);
  }

  // Cuts memory for at most `most` bytes off `scratch` and returns `bytes` of it.
  static std::span<std::byte> take(std::span<std::byte>& scratch, uint64_t bytes, uint64_t most) {
    const auto taken = scratch.first(bytes);
    scratch = scratch.subspan(align_up(most, kTensorAlignment));
    return taken;
  }

  PixelView cropped(const std::byte* pixels, const ImageHeader& header,
                    std::optional<uint64_t> draws) const {
    PixelBox box{0, 0, header.width, header.height};
    const Augmentation& changes = form_.augmentation;
    if (draws && changes.crop) box = random_crop(*draws, box.width, box.height, changes);
    const int64_t stride = int64_t{header.width} * form_.channels;
    return {pixels + box.y * stride + box.x * form_.channels, box.width, box.height, stride};
  }

  void mirror(std::byte* pixels) const {
    for (int64_t y = 0; y < form_.height; ++y) {
      std::byte* const row = pixels + y * form_.width * form_.channels;
      for (int64_t left = 0, right = form_.width - 1; left < right; ++left, --right) {
        std::swap_ranges(row + left * form_.channels, row + (left + 1) * form_.channels,
                         row + right * form_.channels);
      }
    }
  }

  void split_channels(const std::byte* pixels, std::byte* dst) const {
    const int64_t count = form_.height * form_.width;
    for (int64_t i = 0; i < count; ++i) {
      for (int c = 0; c < form_.channels; ++c) dst[c * count + i] = pixels[i * form_.channels + c];
    }
  }

  const ImageView files_;
  const ImageForm form_;
  const ImageLimits limits_;
};

// Arrays in members of shards.
class ArrayRows : public RowDecoder {
 public:
  explicit ArrayRows(const ImageView& files) : files_(files) {}

  size_t scratch_bytes() const override { return 0; }
  size_t library_bytes() const override { return 0; }
  Status decode(int64_t row, std::optional<uint64_t>, std::span<std::byte> dst,
                std::span<std::byte>) const override {
    return read_sample(files_, row, dst);
  }

 private:
  const ImageView files_;
};

bool has_arrays(const ImageSource& source) { return !source.classes && !source.has_pixels(); }

Result<std::vector<std::byte>> make_block(const ColumnSpec& spec) {
  const ImageSource& source = *spec.images;
  const bool arrays = has_arrays(source), pixels = !source.classes && !arrays;
  if (pixels) OFSDP_RETURN_IF_ERROR(check_image_codecs().with_prefix(spec.path));
  OFSDP_ASSIGN_OR_RETURN(ImageList list, list_images(source));
  if (arrays) {
    OFSDP_RETURN_IF_ERROR(read_array_headers(list));
    return pack_images(list);
  }
  if (pixels) {
    OFSDP_RETURN_IF_ERROR(read_headers(list, source, source.threads));
    return pack_images(list);
  }
  OFSDP_REJECT_IF(list.classes.empty() && source.shards.empty(),
                  "{}: expected a subfolder for each class, found images alone: put them into "
                  "subfolders, or name another file for column '{}'",
                  spec.path, spec.name);
  OFSDP_RETURN_IF_ERROR(list.order_classes(spec.path, spec.known));
  return pack_images(list);
}

// The first rank on the host makes the block, and says how long it is before the others map it.
Result<ByteSource> share_block(const ColumnSpec& spec, Communicator& communicator,
                               MemoryLedger& ledger) {
  std::vector<std::byte> block;
  const auto say_size = [&](std::span<std::byte> dst) -> Status {
    OFSDP_ASSIGN_OR_RETURN(block, make_block(spec));
    const uint64_t bytes = block.size();
    std::memcpy(dst.data(), &bytes, sizeof(bytes));
    return ok_status();
  };
  uint64_t bytes = 0;
  OFSDP_ASSIGN_OR_RETURN(const ByteSource size,
                         share_made(spec.path, sizeof(bytes), say_size, communicator, ledger));
  OFSDP_RETURN_IF_ERROR(size.read(0, std::as_writable_bytes(std::span(&bytes, 1))));
  const auto copy = [&](std::span<std::byte> dst) {
    std::ranges::copy(block, dst.begin());
    return ok_status();
  };
  return share_made(spec.path, bytes, copy, communicator, ledger);
}

ImageForm form_of(const ImageSource& source, const ImageHeader& first) {
  return {.height = source.height.value_or(first.height),
          .width = source.width.value_or(first.width),
          .channels = static_cast<int>(source.channels.value_or(first.depth())),
          .layout = source.layout.value_or(ImageLayout::kChw),
          .augmentation = source.augmentation};
}

}  // namespace

Result<OpenedColumn> open_images(const ColumnSpec& spec, Communicator& communicator,
                                 MemoryLedger& ledger) {
  OpenedColumn opened;
  OFSDP_ASSIGN_OR_RETURN(opened.source, share_block(spec, communicator, ledger));
  opened.shared_bytes = kPageBytes + opened.source.size();  // the size has a page of its own
  const ImageView view(opened.source.bytes());
  if (spec.images->classes) {
    opened.classes = view.classes();
    OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, DType::kInt64, {view.count()},
                                                       view.labels_offset()));
    return opened;
  }
  std::vector<int64_t> dims{view.count()};
  if (has_arrays(*spec.images)) {
    dims.insert(dims.end(), view.dims().begin(), view.dims().end());
    OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, view.dtype(), dims, 0));
    opened.decoder = std::make_unique<ArrayRows>(view);
    return opened;
  }
  const ImageForm form = form_of(*spec.images, view.entry(0).header);
  const Shape row = form.shape();
  dims.insert(dims.end(), row.axes().begin(), row.axes().end());
  OFSDP_ASSIGN_OR_RETURN(opened.layout, dense_layout(spec.path, DType::kUInt8, dims, 0));
  opened.decoder = std::make_unique<ImageRows>(view, form);
  return opened;
}

bool holds_images(const std::string& folder) {
  constexpr int kMostEntries = 1000;
  namespace fs = std::filesystem;
  std::error_code error;
  int seen = 0;
  const auto links = fs::directory_options::follow_directory_symlink;  // classes may be links
  for (fs::recursive_directory_iterator i(folder, links, error), end; !error && i != end;
       i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (image_kind_of(name) && !name.starts_with('.')) return true;
    if (++seen == kMostEntries) return false;
  }
  return false;
}

}  // namespace ofsdp::runtime
