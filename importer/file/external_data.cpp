#include "importer/file/external_data.h"

#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "importer/file/model_field.h"
#include "importer/file/wire.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

Result<int64_t> parse_count(std::string_view key, std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  OFSDP_REJECT_IF(error != std::errc{} || end != text.data() + text.size() || value < 0,
                  "external data: expected a number of bytes as {}, found '{}'", key,
                  printable(text));
  return value;
}

Status check_location(const std::string& location) {
  auto refuse = [&](const char* found) {
    return input_error("external data: expected a path inside of the model's folder, found {} '{}'",
                       found, printable(location));
  };
  if (location.empty()) return input_error("external data: location is missing");
  if (location[0] == '/') return refuse("the absolute path");
  if (location.find('\0') != std::string::npos) return refuse("a NUL character in");
  if (("/" + location + "/").find("/../") != std::string::npos) return refuse("'..' in");
  return ok_status();
}

struct Free {
  void operator()(char* p) const { std::free(p); }
};

// The path without symbolic links; empty when there is nothing by that name.
std::string real_path(const std::string& path) {
  const std::unique_ptr<char, Free> real(realpath(path.c_str(), nullptr));
  return real ? real.get() : "";
}

// The folder of the file that a model's path leads to by its links; empty when there is none.
std::string real_folder(const std::string& model) {
  const std::string real = real_path(model);
  return real.empty() ? "" : folder_of(real);
}

// Whether the path `real` lies below `folder`; an empty one holds nothing.
bool is_inside(const std::string& real, const std::string& folder) {
  return !folder.empty() && real.starts_with(folder == "/" ? folder : folder + "/");
}

}  // namespace

Status parse_external_entry(std::span<const std::byte> entry, int64_t origin, ExternalRef& ref) {
  std::string_view key;
  std::string_view value;
  for (WireReader reader(entry, origin); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.type != WireType::kBytes) continue;
    if (field.number == entry_field::kKey) key = as_text(field.bytes);
    if (field.number == entry_field::kValue) value = as_text(field.bytes);
  }
  if (key == "location") ref.location = value;
  if (key == "offset") {
    OFSDP_ASSIGN_OR_RETURN(ref.offset, parse_count(key, value));
  }
  if (key == "length") {
    OFSDP_ASSIGN_OR_RETURN(ref.length, parse_count(key, value));
  }
  return ok_status();
}

Result<OpenFile> open_external(const std::string& model, const std::string& location) {
  OFSDP_RETURN_IF_ERROR(check_location(location));
  const std::string path = join_path(folder_of(model), location);
  const std::string real = real_path(path);
  OFSDP_REJECT_IF(real.empty(), "external data file {}: {}", printable(path),
                  errno == ENOENT ? "no such file" : std::strerror(errno));
  OFSDP_REJECT_IF(
      !is_inside(real, real_path(folder_of(model))) && !is_inside(real, real_folder(model)),
      "external data file {}: expected a file inside of the model's folder, found a symbolic "
      "link to {}",
      printable(path), printable(real));
  // `real` has no links; one that took its place meanwhile is not followed.
  return open_for_reading(real, Symlinks::kRefuse);
}

Result<int64_t> external_bytes(const ExternalRef& ref, const OpenFile& file,
                               std::optional<int64_t> expected) {
  OFSDP_REJECT_IF(expected && ref.length && *ref.length != *expected,
                  "external data in {}: expected {} bytes for its type and shape, found {}",
                  file.path, *expected, *ref.length);
  const int64_t left = file.bytes - ref.offset;
  const int64_t bytes = expected ? *expected : ref.length.value_or(left);
  OFSDP_REJECT_IF(left < 0 || bytes > left,
                  "external data in {}: expected {} bytes at offset {}, found {}", file.path, bytes,
                  ref.offset, left < 0 ? 0 : left);
  return bytes;
}

}  // namespace ofsdp::importer
