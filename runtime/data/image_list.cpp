#include "runtime/data/image_list.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>

#include "kernels/base/host_tasks.h"
#include "kernels/base/names.h"
#include "kernels/base/text.h"
#include "runtime/data/byte_source.h"

namespace ofsdp::runtime {
namespace {

namespace fs = std::filesystem;

constexpr int kMostFolders = 16;  // below each other: links may make a circle

// An image's path below the folder, and its subfolder, empty for none.
struct FoundImage {
  std::string path, subfolder;
};

// Finds images below `folder`; `path` is the part of its path below the column's folder.
Status find_images(const fs::path& folder, const std::string& path, const std::string& subfolder,
                   const std::string& left_out, int depth, std::vector<FoundImage>& found) {
  OFSDP_REJECT_IF(depth > kMostFolders,
                  "{}: expected at most {} folders below each other, found more", folder.string(),
                  kMostFolders);
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    if (name.starts_with('.')) continue;
    std::error_code broken;
    if (i->is_directory(broken)) {
      if (depth == 0 && name == left_out) continue;
      const std::string& own = depth == 0 ? name : subfolder;
      OFSDP_RETURN_IF_ERROR(
          find_images(i->path(), path + name + "/", own, left_out, depth + 1, found));
      continue;
    }
    OFSDP_REJECT_IF(is_foreign_image(name),
                    "{}: expected PNG or JPEG images, found {}: save it as .png",
                    i->path().string(), fs::path(name).extension().string());
    if (image_kind_of(name)) found.push_back({path + name, subfolder});
  }
  OFSDP_REJECT_IF(error, "{}: cannot read the folder: {}", folder.string(), error.message());
  return ok_status();
}

Result<std::vector<FoundImage>> images_of(const std::string& folder, const std::string& left_out) {
  std::vector<FoundImage> found;
  std::error_code error;
  OFSDP_REJECT_IF(
      fs::is_regular_file(folder, error),
      "{}: expected a folder of images, found a file: 'images' is a folder or a list of "
      "folders",
      folder);
  OFSDP_RETURN_IF_ERROR(find_images(folder, "", "", left_out, 0, found));
  OFSDP_REJECT_IF(found.empty(), "{}: expected PNG or JPEG images, found none", folder);
  std::ranges::sort(found, {}, &FoundImage::path);
  return found;
}

// Either all images are in subfolders, or none.
Status check_subfolders(const std::string& folder, const std::vector<FoundImage>& images) {
  const auto loose = std::ranges::find(images, std::string(), &FoundImage::subfolder);
  const auto sorted = std::ranges::find_if(
      images, [](const FoundImage& image) { return !image.subfolder.empty(); });
  if (loose == images.end() || sorted == images.end()) return ok_status();
  return input_error(
      "{}: expected all images in subfolders, one a class, or none, found '{}' beside '{}'", folder,
      loose->path, sorted->path);
}

// A subfolder without an image is a class that has lost its images.
Status check_empty_subfolders(const std::string& folder, const std::string& left_out,
                              const std::vector<FoundImage>& images) {
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error)) {
    const std::string name = i->path().filename().string();
    std::error_code broken;
    if (name.starts_with('.') || name == left_out || !i->is_directory(broken)) continue;
    const auto next = std::ranges::lower_bound(images, name + "/", {}, &FoundImage::path);
    OFSDP_REJECT_IF(next == images.end() || next->subfolder != name,
                    "{}: expected PNG or JPEG images of a class, found none", i->path().string());
  }
  return ok_status();
}

// One subfolder that holds only folders is a folder around the classes.
Status check_one_class(const std::string& folder, const std::vector<FoundImage>& images) {
  const std::string& only = images[0].subfolder;
  const bool wraps = !only.empty() && std::ranges::all_of(images, [&](const FoundImage& image) {
    return image.subfolder == only && image.path.find('/', only.size() + 1) != std::string::npos;
  });
  OFSDP_REJECT_IF(wraps,
                  "{}: expected a subfolder for each class, found the one folder '{}', which "
                  "holds folders: give {} to --data",
                  folder, only, (fs::path(folder) / only).string());
  return ok_status();
}

std::vector<std::string> sorted_classes(const std::vector<FoundImage>& images) {
  std::vector<std::string> classes;
  for (const FoundImage& image : images) {
    if (classes.empty() || classes.back() != image.subfolder) classes.push_back(image.subfolder);
  }
  std::ranges::sort(classes);
  const auto same = std::ranges::unique(classes);
  classes.erase(same.begin(), same.end());
  return classes;
}

std::map<std::string_view, int64_t> numbers_of(const std::vector<std::string>& names) {
  std::map<std::string_view, int64_t> numbers;
  for (const std::string& name : names) numbers.emplace(name, std::ssize(numbers));
  return numbers;
}

// Reads more of the file until the header is whole: cameras write large segments before it.
Result<ImageHeader> header_of(ImageFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(file.path));
  if (file.bytes == 0) file.bytes = source.size() - file.offset;
  std::vector<std::byte> prefix;
  for (const uint64_t most : {uint64_t{2048}, uint64_t{1} << 17, kMostImageBytes}) {
    const size_t before = prefix.size();
    prefix.resize(std::min(most, file.bytes));
    OFSDP_RETURN_IF_ERROR(source.read(file.offset + before, std::span(prefix).subspan(before)));
    OFSDP_ASSIGN_OR_RETURN(const auto header, read_image_header(file.name, prefix, file.bytes));
    if (header) return *header;
  }
  return input_error("{}: damaged: expected a header in its first {} bytes, found none", file.name,
                     prefix.size());
}

const char* depth_name(int64_t channels) { return channels == 1 ? "grey" : "colour"; }

Status check_alike(const ImageFile& file, const ImageFile& first, const ImageSource& source) {
  const ImageHeader& header = file.header;
  if (!source.channels && source.wanted_channels > 0 && header.depth() != source.wanted_channels) {
    return input_error(
        "{}: expected a {} image, as the graph's input has {} channels, found a {} one: `channels: "
        "{}` under the column's `images:` in a YAML file for --data converts it",
        file.name, depth_name(source.wanted_channels), source.wanted_channels,
        depth_name(header.depth()), source.wanted_channels);
  }
  if (!source.channels && header.depth() != first.header.depth()) {
    return input_error(
        "{}: expected a {} image as '{}', found a {} one: channels: 3 or channels: 1 converts all",
        file.name, depth_name(first.header.depth()), first.name, depth_name(header.depth()));
  }
  const bool same = header.width == first.header.width && header.height == first.header.height;
  if (source.height || same) return ok_status();
  return input_error(
      "{}: expected an image of height {} and width {} as '{}', found {} and {}: size: [height, "
      "width] resizes all",
      file.name, first.header.height, first.header.width, first.name, header.height, header.width);
}

template <typename T>
uint64_t put(std::vector<std::byte>& block, std::span<const T> values) {
  block.resize((block.size() + alignof(T) - 1) / alignof(T) * alignof(T));
  const uint64_t at = block.size();
  const auto bytes = std::as_bytes(values);
  block.insert(block.end(), bytes.begin(), bytes.end());
  return at;
}

struct BlockHead {
  uint64_t count, entries, names, labels, classes, class_count, dims, rank;
  DType dtype;
};

}  // namespace

Status ImageList::order_classes(const std::string& origin, const ClassNames& known) {
  const std::vector<std::string>& names = known.names;
  if (names.empty() || classes.empty()) return ok_status();  // classes of numbers stay
  const auto numbers = numbers_of(names);
  const bool has_all =
      std::ranges::all_of(classes, [&](const std::string& name) { return numbers.contains(name); });
  if (!has_all && !known.binding) return ok_status();
  std::vector<int64_t> numbered;
  for (const std::string& name : classes) {
    const auto found = numbers.find(name);
    OFSDP_REJECT_IF(found == numbers.end(), "{}: expected a class of {} ({}), found '{}'{}", origin,
                    joined(names, ", ").substr(0, 200), known.source, name,
                    did_you_mean(name, names));
    numbered.push_back(found->second);
  }
  for (ImageFile& file : files) file.label = numbered[static_cast<size_t>(file.label)];
  classes = names;
  return ok_status();
}

Result<ImageList> list_images(const ImageSource& source) {
  if (!source.shards.empty()) return list_members(source);
  ImageList list;
  std::vector<std::vector<FoundImage>> found;
  for (const std::string& folder : source.folders) {
    OFSDP_ASSIGN_OR_RETURN(std::vector<FoundImage> images, images_of(folder, source.left_out));
    OFSDP_RETURN_IF_ERROR(check_subfolders(folder, images));
    OFSDP_RETURN_IF_ERROR(check_one_class(folder, images));
    if (!images[0].subfolder.empty()) {
      OFSDP_RETURN_IF_ERROR(check_empty_subfolders(folder, source.left_out, images));
    }
    for (const std::string& name : sorted_classes(images)) list.classes.push_back(name);
    found.push_back(std::move(images));
  }
  std::ranges::sort(list.classes);
  const auto same = std::ranges::unique(list.classes);
  list.classes.erase(same.begin(), same.end());
  const auto numbers = numbers_of(list.classes);
  for (size_t i = 0; i < found.size(); ++i) {
    for (const FoundImage& image : found[i]) {
      const std::string path = (fs::path(source.folders[i]) / image.path).string();
      list.files.push_back({.path = path, .name = path, .label = numbers.at(image.subfolder)});
    }
  }
  if (list.classes == std::vector<std::string>{""}) list.classes.clear();
  return list;
}

Status read_headers(ImageList& list, const ImageSource& source, int threads) {
  constexpr int64_t kBlock = 128;  // files of a task
  const auto count = std::ssize(list.files);
  OFSDP_RETURN_IF_ERROR(for_each_task(threads, (count + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t end = std::min(count, (block + 1) * kBlock);
    for (int64_t i = block * kBlock; i < end; ++i) {
      ImageFile& file = list.files[static_cast<size_t>(i)];
      OFSDP_ASSIGN_OR_RETURN(file.header, header_of(file));
    }
    return ok_status();
  }));
  for (const ImageFile& file : list.files) {
    OFSDP_RETURN_IF_ERROR(check_alike(file, list.files.front(), source));
  }
  return ok_status();
}

std::vector<std::byte> pack_images(const ImageList& list) {
  std::vector<std::byte> block(sizeof(BlockHead));
  std::vector<ImageView::Entry> entries;
  std::vector<int64_t> labels;
  std::vector<char> names;
  std::vector<char> classes;
  const auto add = [](std::vector<char>& to, const std::string& text) {
    to.insert(to.end(), text.c_str(), text.c_str() + text.size() + 1);
  };
  for (const ImageFile& file : list.files) {
    ImageView::Entry entry{names.size(), names.size(), file.offset, file.bytes, file.header};
    const bool same = !entries.empty() && file.path == names.data() + entries.back().path;
    if (same) entry.path = entry.name = entries.back().path;
    if (!same) add(names, file.path);
    if (file.name != file.path) {
      entry.name = names.size();
      add(names, file.name);
    }
    entries.push_back(entry);
    labels.push_back(file.label);
  }
  for (const std::string& name : list.classes) add(classes, name);
  const BlockHead head{.count = entries.size(),
                       .entries = put<ImageView::Entry>(block, entries),
                       .names = put<char>(block, names),
                       .labels = put<int64_t>(block, labels),
                       .classes = put<char>(block, classes),
                       .class_count = list.classes.size(),
                       .dims = put<int64_t>(block, list.dims),
                       .rank = list.dims.size(),
                       .dtype = list.dtype};
  std::memcpy(block.data(), &head, sizeof(head));
  return block;
}

ImageView::ImageView(std::span<const std::byte> block) {
  BlockHead head{};
  std::memcpy(&head, block.data(), sizeof(head));
  entries_ = {reinterpret_cast<const Entry*>(block.data() + head.entries), head.count};
  names_ = reinterpret_cast<const char*>(block.data() + head.names);
  labels_ = head.labels;
  classes_ = reinterpret_cast<const char*>(block.data() + head.classes);
  class_count_ = head.class_count;
  dtype_ = head.dtype;
  const auto* const dims = reinterpret_cast<const int64_t*>(block.data() + head.dims);
  dims_.assign(dims, dims + head.rank);
}

std::vector<std::string> ImageView::classes() const {
  std::vector<std::string> names;
  for (const char* at = classes_; names.size() < class_count_; at += names.back().size() + 1) {
    names.emplace_back(at);
  }
  return names;
}

ImageLimits ImageView::limits(int channels) const {
  ImageLimits limits;
  for (const Entry& entry : entries_) {
    const ImageHeader& header = entry.header;
    const uint64_t bytes = header.pixels() * std::max<uint64_t>(header.channels, channels);
    limits.file_bytes = std::max(limits.file_bytes, entry.bytes);
    limits.pixel_bytes = std::max(limits.pixel_bytes, bytes);
    limits.codec_bytes = std::max<uint64_t>(limits.codec_bytes, codec_bytes(header));
    limits.width = std::max<int64_t>(limits.width, header.width);
    limits.height = std::max<int64_t>(limits.height, header.height);
  }
  return limits;
}

}  // namespace ofsdp::runtime
