#include <algorithm>
#include <charconv>
#include <map>
#include <set>

#include "kernels/base/names.h"
#include "kernels/base/text.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/column_file.h"
#include "runtime/data/image_list.h"
#include "runtime/data/tar_index.h"

namespace ofsdp::runtime {
namespace {

// WebDataset: adjacent members with one name up to the first dot of its last part are a sample, and
// the rest of the name says which part of the sample it is.
struct MemberName {
  std::string key, extension;
};

size_t last_part(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? 0 : slash + 1;
}

MemberName member_name(const std::string& name) {
  const size_t dot = name.find('.', last_part(name));
  if (dot == std::string::npos) return {name, ""};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

bool is_hidden(const TarMember& member) {
  return member.name.compare(last_part(member.name), 1, ".") == 0;
}

// `sample`: its members.
Result<ImageFile> wanted_member(const std::string& shard, std::span<const TarMember> sample,
                                const std::string& wanted) {
  std::vector<std::string> there;
  const TarMember* found = nullptr;
  for (const TarMember& member : sample) {
    there.push_back(member_name(member.name).extension);
    if (there.back() != wanted) continue;
    OFSDP_REJECT_IF(found != nullptr, "{}: member '{}' is there twice", shard, member.name);
    found = &member;
  }
  OFSDP_REJECT_IF(found == nullptr, "{}: sample '{}': expected a member '{}', found {}{}", shard,
                  member_name(sample[0].name).key, wanted, joined(there, ", "),
                  did_you_mean(wanted, there));
  OFSDP_REJECT_IF(found->bytes == 0, "{}: member '{}' is empty", shard, found->name);
  return ImageFile{.path = shard,
                   .name = shard + "/" + found->name,
                   .offset = found->offset,
                   .bytes = found->bytes};
}

Status list_shard(const std::string& shard, const std::string& wanted, ImageList& list) {
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(shard));
  OFSDP_ASSIGN_OR_RETURN(std::vector<TarMember> members, tar_members(source));
  std::erase_if(members, is_hidden);
  std::set<std::string> keys;
  for (size_t begin = 0, end = 0; begin < members.size(); begin = end) {
    const std::string key = member_name(members[begin].name).key;
    while (end < members.size() && member_name(members[end].name).key == key) ++end;
    OFSDP_REJECT_IF(!keys.insert(key).second,
                    "{}: sample '{}': expected its members next to each other, found them apart",
                    shard, key);
    const auto sample = std::span(members).subspan(begin, end - begin);
    OFSDP_ASSIGN_OR_RETURN(ImageFile file, wanted_member(shard, sample, wanted));
    list.files.push_back(std::move(file));
  }
  return ok_status();
}

Result<std::string> class_text(const ImageFile& file) {
  constexpr uint64_t kMostClassBytes = 1000;
  const char* const kBlanks = " \r\n\t";
  OFSDP_REJECT_IF(file.bytes > kMostClassBytes,
                  "{}: expected a class, a number or a name, found {} bytes", file.name,
                  file.bytes);
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(file.path));
  std::string text(file.bytes, '\0');
  OFSDP_RETURN_IF_ERROR(source.read(file.offset, std::as_writable_bytes(std::span(text))));
  const size_t begin = text.find_first_not_of(kBlanks);
  OFSDP_REJECT_IF(begin == std::string::npos || text.find('\n') < text.find_last_not_of(kBlanks),
                  "{}: expected a class, a number or a name, found '{}'", file.name,
                  text.substr(0, 40));
  return text.substr(begin, text.find_last_not_of(kBlanks) + 1 - begin);
}

bool to_number(const std::string& text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size();
}

// Numbers, if every text is one; else names, which are numbered in the order of their bytes.
Status read_classes(ImageList& list) {
  std::vector<std::string> texts;
  for (const ImageFile& file : list.files) {
    OFSDP_ASSIGN_OR_RETURN(std::string text, class_text(file));
    texts.push_back(std::move(text));
  }
  bool numbers = true;
  for (size_t i = 0; i < texts.size(); ++i) {
    numbers = to_number(texts[i], list.files[i].label) && numbers;
  }
  if (numbers) return ok_status();
  std::map<std::string, int64_t> order;
  for (const std::string& text : texts) order.emplace(text, 0);
  for (auto& [name, number] : order) {
    number = std::ssize(list.classes);
    list.classes.push_back(name);
  }
  for (size_t i = 0; i < texts.size(); ++i) list.files[i].label = order.at(texts[i]);
  return ok_status();
}

}  // namespace

Result<ImageList> list_members(const ImageSource& source) {
  ImageList list;
  for (const std::string& shard : source.shards) {
    OFSDP_RETURN_IF_ERROR(list_shard(shard, source.member, list));
  }
  OFSDP_REJECT_IF(list.files.empty(), "{}: expected samples, found none", source.shards[0]);
  if (source.classes) OFSDP_RETURN_IF_ERROR(read_classes(list));
  return list;
}

std::vector<std::string> numbered_shards(const std::string& name) {
  constexpr int64_t kMostShards = 100000;
  const size_t open = name.find('{'), dots = name.find("..", open), close = name.find('}', open);
  if (open == std::string::npos) return {name};
  int64_t first = 0, last = -1;
  const auto number = [&](size_t begin, size_t end, int64_t& to) {
    const auto [at, error] = std::from_chars(name.data() + begin, name.data() + end, to);
    return error == std::errc() && at == name.data() + end && to >= 0;
  };
  const bool ranges = dots < close && close != std::string::npos && number(open + 1, dots, first) &&
                      number(dots + 2, close, last) && last - first < kMostShards;
  std::vector<std::string> names;
  for (int64_t i = first; ranges && i <= last; ++i) {
    std::string digits = std::to_string(i);
    digits.insert(0, std::max(dots - open - 1, digits.size()) - digits.size(), '0');
    names.push_back(name.substr(0, open) + digits + name.substr(close + 1));
  }
  return names;
}

Result<std::vector<std::string>> first_members(const std::string& shard) {
  OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(shard));
  OFSDP_ASSIGN_OR_RETURN(std::vector<TarMember> members, tar_members(source));
  std::erase_if(members, is_hidden);
  std::vector<std::string> extensions;
  for (const TarMember& member : members) {
    const auto [key, extension] = member_name(member.name);
    if (key == member_name(members[0].name).key) extensions.push_back(extension);
  }
  return extensions;
}

Status read_array_headers(ImageList& list) {
  constexpr uint64_t kMostHeaderBytes = 128 * 1024;
  for (ImageFile& file : list.files) {
    OFSDP_ASSIGN_OR_RETURN(const ByteSource source, ByteSource::open(file.path));
    std::vector<std::byte> prefix(std::min(file.bytes, kMostHeaderBytes));
    OFSDP_RETURN_IF_ERROR(source.read(file.offset, prefix));
    OFSDP_ASSIGN_OR_RETURN(const ColumnLayout layout, parse_npy(file.name, prefix));
    std::vector<int64_t> dims{layout.count};
    dims.insert(dims.end(), layout.row.axes().begin(), layout.row.axes().end());
    OFSDP_REJECT_IF(layout.end_byte() != file.bytes, "{}: expected {} bytes, found {}", file.name,
                    layout.end_byte(), file.bytes);
    if (&file == &list.files.front()) {
      list.dtype = layout.dtype;
      list.dims = dims;
    }
    OFSDP_REJECT_IF(layout.dtype != list.dtype || dims != list.dims,
                    "{}: expected {}{} as '{}', found {}{}", file.name, dtype_name(list.dtype),
                    Shape(list.dims).text(), list.files[0].name, dtype_name(layout.dtype),
                    Shape(dims).text());
    file.offset += layout.first_byte;
    file.bytes -= layout.first_byte;
  }
  return ok_status();
}

}  // namespace ofsdp::runtime
