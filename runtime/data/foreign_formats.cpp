#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/base/text.h"
#include "runtime/data/byte_source.h"
#include "runtime/data/column_file.h"

namespace ofsdp::runtime {
namespace {

// Formats of data that people have, by their first bytes, and how to make columns of them.
struct ForeignFormat {
  std::string_view magic;
  const char* name;
  const char* remedy;
};
constexpr const char* kOfImages = "give its folder, with a subfolder for each class";
constexpr ForeignFormat kForeign[] = {
    {"\x89PNG", "a PNG image", kOfImages},
    {"\xff\xd8\xff", "a JPEG image", kOfImages},
    {"GIF8", "a GIF image", "save it as .png"},
    {"PAR1", "a parquet table", "name it .parquet"},
    {"ARROW1", "an Arrow table", "write it as .parquet or .csv"},
    {"PK\x03\x04", "a zip archive", "name it .npz if numpy.savez wrote it"},
    {"\x1f\x8b", "gzip data", "unpack it first"},
    {"\x89HDF", "an HDF5 file", "save its arrays, numpy.save('x.npy', file['x'][:])"},
    {"\x80\x02", "a pickle", "save its arrays, numpy.save('x.npy', a)"},
    {"\x80\x03", "a pickle", "save its arrays, numpy.save('x.npy', a)"},
    {"\x80\x04", "a pickle", "save its arrays, numpy.save('x.npy', a)"},
    {"\x80\x05", "a pickle", "save its arrays, numpy.save('x.npy', a)"},
    {"\x93NUMPY", "a .npy array", "name it .npy"},
    {"{", "JSON", "name it .jsonl if each line is an object"}};

}  // namespace

std::string bytes_remark(std::string_view prefix) {
  for (const ForeignFormat& format : kForeign) {
    if (!prefix.starts_with(format.magic)) continue;
    return format_text(", which looks like {}: {}", format.name, format.remedy);
  }
  return "";
}

std::string file_remark(const std::string& path) {
  if (data_ending(path) == ".npy") return ", which is one column: give its folder";
  if (data_ending(path) == ".txt") {
    return ", which looks like text: a YAML file gives it a tokenizer, {text: FILE, tokenizer: "
           "tokenizer.json}";
  }
  const Result<ByteSource> source = ByteSource::open(path);
  if (!source.ok()) return "";
  std::string prefix(std::min<uint64_t>(source->size(), 16), '\0');
  const Status done = source->read(0, std::as_writable_bytes(std::span(prefix)));
  return done.ok() ? bytes_remark(prefix) : "";
}

}  // namespace ofsdp::runtime
