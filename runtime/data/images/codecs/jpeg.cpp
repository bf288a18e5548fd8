#include <array>
#include <csetjmp>
#include <cstdio>
// The library needs FILE, and its second header the first one.
#include <jpeglib.h>
//
#include <jerror.h>

#include "runtime/data/images/codecs/codecs.h"

namespace ofsdp::runtime {
namespace {

// libjpeg returns from an error by longjmp, so nothing with a destructor lives between
// jpeg_create_decompress and jpeg_destroy_decompress. The error manager is first: libjpeg passes a
// pointer to it.
struct JpegRead {
  jpeg_error_mgr manager;
  jpeg_progress_mgr progress;
  jpeg_decompress_struct image;
  std::jmp_buf on_error;
  std::array<char, JMSG_LENGTH_MAX> error;
};

JpegRead& reading(j_common_ptr image) { return *reinterpret_cast<JpegRead*>(image->err); }

[[noreturn]] void jpeg_failed(j_common_ptr image) {
  JpegRead& read = reading(image);
  read.manager.format_message(image, read.error.data());
  std::longjmp(read.on_error, 1);
}

// libjpeg goes on after damage, with made-up pixels; here damage is an error.
void jpeg_warned(j_common_ptr image, int level) {
  const int code = image->err->msg_code;
  const bool harmless =
      code == JWRN_EXTRANEOUS_DATA || code == JWRN_JFIF_MAJOR || code == JWRN_ADOBE_XFORM;
  if (level < 0 && !harmless) jpeg_failed(image);
}

// A file of few bytes may name thousands of scans, each of which takes a whole image's time.
void limit_scans(j_common_ptr image) {
  constexpr int kMostScans = 100;
  JpegRead& read = reading(image);
  if (!image->is_decompressor || read.image.input_scan_number <= kMostScans) return;
  std::snprintf(read.error.data(), read.error.size(), "more than %d scans", kMostScans);
  std::longjmp(read.on_error, 1);
}

void jpeg_silent(j_common_ptr) {}

void set_up(JpegRead& read, std::span<const std::byte> bytes, const ImageHeader& header) {
  jpeg_create_decompress(&read.image);
  read.progress.progress_monitor = limit_scans;
  read.image.progress = &read.progress;
  read.image.mem->max_memory_to_use = static_cast<long>(jpeg_bytes(header));  // NOLINT
  jpeg_mem_src(&read.image, reinterpret_cast<const unsigned char*>(bytes.data()),
               static_cast<unsigned long>(bytes.size()));  // NOLINT
}

J_COLOR_SPACE colours_of(const ImageHeader& header) {
  return header.channels == 1 ? JCS_GRAYSCALE : header.channels == 3 ? JCS_RGB : JCS_CMYK;
}

// Adobe's programs write CMYK inverted, and all others follow them.
void invert(std::byte* row, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) row[i] = ~row[i];
}

void take_scanlines(JpegRead& read, const ImageHeader& header, std::byte* pixels) {
  const size_t bytes = size_t{header.width} * header.channels;
  read.image.out_color_space = colours_of(header);
  jpeg_start_decompress(&read.image);
  while (read.image.output_scanline < read.image.output_height) {
    std::byte* const at = pixels + read.image.output_scanline * bytes;
    auto* row = reinterpret_cast<JSAMPROW>(at);
    jpeg_read_scanlines(&read.image, &row, 1);
    if (header.channels == 4) invert(at, bytes);
  }
  jpeg_finish_decompress(&read.image);
}

// Returns 0 if all went well, 1 after an error, 2 if the file has another header now.
int take_jpeg(JpegRead& read, std::span<const std::byte> bytes, const ImageHeader& header,
              std::byte* pixels) {
  if (setjmp(read.on_error) != 0) return 1;
  set_up(read, bytes, header);
  jpeg_read_header(&read.image, TRUE);
  const bool same = read.image.image_width == header.width &&
                    read.image.image_height == header.height &&
                    read.image.num_components == header.channels;
  if (!same) return 2;
  take_scanlines(read, header, pixels);
  return 0;
}

}  // namespace

// Rows in several stages of the decoder; in passes, every coefficient of the image.
size_t jpeg_bytes(const ImageHeader& header) {
  constexpr size_t kState = 1024 * 1024, kPadding = 64;
  const size_t row = (header.width + kPadding) * header.channels;
  return kState + row * 80 + (header.in_passes ? row * (header.height + kPadding) * 2 : 0);
}

Status decode_jpeg(const std::string& name, std::span<const std::byte> bytes,
                   const ImageHeader& header, std::byte* pixels) {
  JpegRead read{};
  read.image.err = jpeg_std_error(&read.manager);
  read.manager.error_exit = jpeg_failed;
  read.manager.emit_message = jpeg_warned;
  read.manager.output_message = jpeg_silent;
  const int outcome = take_jpeg(read, bytes, header, pixels);
  jpeg_destroy_decompress(&read.image);
  if (outcome == 2) return changed_image(name, header);
  return outcome == 0 ? ok_status() : damaged_image(name, ImageKind::kJpeg, read.error.data());
}

}  // namespace ofsdp::runtime
