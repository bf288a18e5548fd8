// A fuzz target: a PNG or JPEG image by the first byte, else a .tar archive. A file with a header
// decodes or is an error; members lie within the archive.
#include <cstdlib>
#include <vector>

#include "runtime/data/images/image.h"
#include "runtime/data/tar_index.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/namespaces.h"

namespace {

using namespace ofsdp;

void read_image(const std::string& name, std::span<const std::byte> bytes) {
  constexpr uint64_t kMost = 1 << 20;  // pixels: larger ones only cost time
  const auto header = read_image_header(name, bytes, bytes.size());
  if (!header.ok()) return fuzzing::check_message(header.error().message());
  if (!*header || (*header)->pixels() > kMost) return;
  std::vector<std::byte> pixels((*header)->pixels() * 4);
  const Status status = decode_image(name, bytes, **header, pixels.data());
  if (!status.ok()) return fuzzing::check_message(status.message());
  convert_pixels(pixels.data(), (*header)->pixels(), (*header)->channels, 1);
}

void read_tar(std::span<const std::byte> bytes) {
  const auto members = tar_members(ByteSource::memory("x.tar", bytes));
  if (!members.ok()) return fuzzing::check_message(members.error().message());
  for (const TarMember& member : *members) {
    if (member.offset > bytes.size() || member.bytes > bytes.size() - member.offset) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  const bool png = size > 0 && data[0] == 0x89, jpeg = size > 0 && data[0] == 0xff;
  png || jpeg ? read_image(png ? "x.png" : "x.jpg", bytes) : read_tar(bytes);
  return 0;
}
