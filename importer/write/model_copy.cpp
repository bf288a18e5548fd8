#include "importer/write/model_copy.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "importer/file/integer_codec.h"
#include "importer/write/value_writer.h"

namespace ofsdp::importer {
namespace {

constexpr int64_t kCopyStep = int64_t{64} << 20;  // bytes between two looks at `cancelled`

Result<OpenFile> open_or_make(const std::string& path) {
  OpenFile file{path,
                UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666))};
  if (file.fd.get() < 0) return fault("{}: cannot be created: {}", path, std::strerror(errno));
  return file;
}

}  // namespace

Result<ModelCopy> ModelCopy::plan(const OnnxFile& input, const std::string& name,
                                  const std::vector<int>& changing,
                                  const std::vector<std::string>& taken) {
  std::vector<std::string> locations;
  const auto& data_files = input.contents().data_files;
  auto keeps = [&](const DataFile& data) {
    const std::string& l = data.location;
    return l.find('/') == std::string::npos && !l.starts_with('.') && l != name &&
           std::ranges::find(taken, l) == taken.end();
  };
  const bool keep = std::ranges::all_of(data_files, keeps);
  for (size_t i = 0; i < data_files.size(); ++i) {
    locations.push_back(keep     ? data_files[i].location
                        : i == 0 ? name + ".data"
                                 : format_text("{}.{}.data", name, i));
  }
  std::vector<std::string> names{name};
  names.insert(names.end(), locations.begin(), locations.end());
  return make(input, names, locations, changing, true);
}

Result<ModelCopy> ModelCopy::make(const OnnxFile& input, const std::vector<std::string>& names,
                                  const std::vector<std::string>& locations,
                                  const std::vector<int>& changing, bool creates) {
  ModelCopy copy;
  copy.input_ = &input;
  copy.creates_ = creates;
  copy.changing_ = changing;
  std::ranges::sort(copy.changing_);
  OFSDP_ASSIGN_OR_RETURN(copy.layout_, lay_out_model(input, locations));
  copy.files_.push_back({names[0], copy.layout_.bytes});
  for (size_t i = 1; i < names.size(); ++i) {
    copy.files_.push_back({names[i], input.contents().data_files[i - 1].file.bytes});
  }
  return copy;
}

bool ModelCopy::is_plain(int index) const {
  const Initializer& weight = initializer(index);
  return weight.encoding == Initializer::Encoding::kDense && weight.dtype == DType::kFloat32;
}

void ModelCopy::rescale(int initializer, std::vector<float> scales) {
  auto& place = layout_.initializers[static_cast<size_t>(initializer)];
  Quantization changed = *place.quantization;
  changed.scales = std::move(scales);
  place.quantization = std::make_shared<const Quantization>(std::move(changed));
}

Status ModelCopy::write(const std::string& folder, int initializer, int64_t first_element,
                        std::span<const float> src) const {
  return write(folder, this->initializer(initializer), first_element, src);
}

Status ModelCopy::write(const std::string& folder, const Initializer& place, int64_t first_element,
                        std::span<const float> src) const {
  if (src.empty()) return ok_status();
  OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open(folder, static_cast<size_t>(place.file)));
  return write_values(file, place, first_element, src);
}

Status ModelCopy::write_rest(const std::string& folder, const std::atomic<bool>& cancelled) const {
  OFSDP_ASSIGN_OR_RETURN(const OpenFile model, open(folder, 0));
  const auto skip = changing_ranges(input_->initializers(), 0);
  for (const Piece& piece : layout_.pieces) {
    if (piece.kind == Piece::Kind::kCopy) {
      OFSDP_RETURN_IF_ERROR(copy_around(input_->file(), piece.source, piece.source + piece.bytes,
                                        model, piece.target, skip, cancelled));
    } else if (piece.kind == Piece::Kind::kLiteral) {
      OFSDP_RETURN_IF_ERROR(
          write_exactly(model, piece.target, std::as_bytes(std::span(piece.literal))));
    } else if (!changes(piece.initializer)) {
      const Initializer& weight = input_->initializers()[static_cast<size_t>(piece.initializer)];
      if (weight.quantization != nullptr) {
        OFSDP_RETURN_IF_ERROR(copy_integers(weight, initializer(piece.initializer), model));
        continue;
      }
      std::vector<float> values(static_cast<size_t>(weight.shape.numel()));
      OFSDP_RETURN_IF_ERROR(input_->read(weight, 0, values));
      OFSDP_RETURN_IF_ERROR(write_values(model, initializer(piece.initializer), 0, values));
    }
  }
  for (size_t i = 1; i < files_.size(); ++i) {
    const OpenFile& source = input_->contents().data_files[i - 1].file;
    OFSDP_ASSIGN_OR_RETURN(const OpenFile data, open(folder, i));
    OFSDP_RETURN_IF_ERROR(copy_around(source, 0, source.bytes, data, 0,
                                      changing_ranges(input_->initializers(), static_cast<int>(i)),
                                      cancelled));
  }
  return ok_status();
}

Status ModelCopy::sync(const std::string& folder) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    OFSDP_ASSIGN_OR_RETURN(const OpenFile file, open(folder, i));
    OFSDP_RETURN_IF_ERROR(sync_file(file));
  }
  return ok_status();
}

Result<OpenFile> ModelCopy::open(const std::string& folder, size_t file) const {
  const std::string path = join_path(folder, files_[file].name);
  return creates_ ? open_or_make(path) : open_for_writing(path);
}

std::vector<ModelCopy::Range> ModelCopy::changing_ranges(const std::vector<Initializer>& list,
                                                         int file) const {
  std::vector<Range> ranges;
  for (const int index : changing_) {
    const Initializer& w = list[static_cast<size_t>(index)];
    if (w.file != file || w.encoding == Initializer::Encoding::kList) continue;
    const int64_t tag = w.stride - static_cast<int64_t>(dtype_size(w.dtype));
    const int64_t bytes = w.bits == 4 ? w.raw_bytes() : w.shape.numel() * w.stride;
    ranges.push_back({w.offset - tag, w.offset - tag + bytes});
  }
  std::ranges::sort(ranges, {}, &Range::begin);
  return ranges;
}

Status ModelCopy::copy_around(const OpenFile& src, int64_t begin, int64_t end, const OpenFile& dst,
                              int64_t target, const std::vector<Range>& skip,
                              const std::atomic<bool>& cancelled) const {
  const int64_t shift = target - begin;
  auto copy = [&](int64_t from, int64_t to) -> Status {
    for (; from < to; from += kCopyStep) {
      if (cancelled) return fault("{}: not written: the run ends", dst.path);
      OFSDP_RETURN_IF_ERROR(
          copy_bytes(src, from, dst, from + shift, std::min(kCopyStep, to - from)));
    }
    return ok_status();
  };
  for (const Range& range : skip) {
    if (range.end <= begin || range.begin >= end) continue;
    OFSDP_RETURN_IF_ERROR(copy(begin, range.begin));
    begin = std::max(begin, range.end);
  }
  return copy(begin, end);
}

Status ModelCopy::copy_integers(const Initializer& from, const Initializer& to,
                                const OpenFile& file) const {
  std::vector<int64_t> integers(static_cast<size_t>(from.shape.numel()));
  OFSDP_RETURN_IF_ERROR(read_integers(input_->file(), from, 0, integers));
  return write_integers(file, to, 0, integers);
}

bool ModelCopy::changes(int initializer) const {
  return std::ranges::binary_search(changing_, initializer);
}

}  // namespace ofsdp::importer
