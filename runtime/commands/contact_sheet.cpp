#include "runtime/commands/contact_sheet.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "kernels/base/text.h"
#include "runtime/report/chart.h"

namespace ofsdp::runtime {
namespace {

constexpr int64_t kLongestSide = 112;  // pixels; larger pictures lose rows and columns
constexpr size_t kMostCaption = 40;    // bytes

void put(std::string& bytes, uint32_t value, int count) {
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(value >> (8 * i) & 0xff);
}

// A BMP file, which needs no compression: 24 bits, BGR, from the top.
std::string bmp(const Picture& picture) {
  const int64_t step = std::max<int64_t>(
      1, (std::max(picture.height, picture.width) + kLongestSide - 1) / kLongestSide);
  const int64_t height = (picture.height + step - 1) / step,
                width = (picture.width + step - 1) / step;
  const auto stride = static_cast<uint32_t>((width * 3 + 3) / 4 * 4);
  constexpr uint32_t kHeader = 54;
  std::string bytes = "BM";
  put(bytes, kHeader + stride * static_cast<uint32_t>(height), 4);
  put(bytes, 0, 4);
  put(bytes, kHeader, 4);
  put(bytes, 40, 4);
  put(bytes, static_cast<uint32_t>(width), 4);
  put(bytes, static_cast<uint32_t>(-height), 4);
  put(bytes, 1, 2);
  put(bytes, 24, 2);
  bytes.append(kHeader - bytes.size(), '\0');
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const int64_t at = (y * step * picture.width + x * step) * picture.depth;
      for (const int64_t colour : {2, 1, 0}) {
        const int64_t place = at + std::min(colour, picture.depth - 1);
        bytes += static_cast<char>(picture.pixels[static_cast<size_t>(place)]);
      }
    }
    bytes.append(stride - static_cast<size_t>(width * 3), '\0');
  }
  return bytes;
}

std::string base64(const std::string& bytes) {
  std::string text(sodium_base64_ENCODED_LEN(bytes.size(), sodium_base64_VARIANT_ORIGINAL), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), sodium_base64_VARIANT_ORIGINAL);
  text.resize(std::strlen(text.c_str()));
  return text;
}

// The texts of the first column that has one for each picture: the classes.
std::string caption(const SurveyedPart& part, size_t i) {
  for (const ColumnSurvey& column : part.columns) {
    if (i < column.captions.size()) return column.captions[i].substr(0, kMostCaption);
  }
  return "";
}

std::string figures(const SurveyedPart& part, const ColumnSurvey& column) {
  std::string text = format_text("<h2>{}: {}, {} of {} rows</h2>\n<div>\n", html(part.name),
                                 html(column.name), column.pictures.size(), column.rows);
  for (size_t i = 0; i < column.pictures.size(); ++i) {
    text += format_text(
        "<figure><img alt=\"\" src=\"data:image/bmp;base64,{}\"><figcaption>{}</figcaption>"
        "</figure>\n",
        base64(bmp(column.pictures[i])), html(caption(part, i)));
  }
  return text + "</div>\n";
}

}  // namespace

std::string contact_sheet(const std::string& title, const std::vector<SurveyedPart>& parts) {
  std::string text;
  for (const SurveyedPart& part : parts) {
    for (const ColumnSurvey& column : part.columns) {
      if (!column.pictures.empty()) text += figures(part, column);
    }
  }
  if (text.empty()) return text;
  return format_text(
             "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>{}</title>\n"
             "<style>body{{font:14px sans-serif;margin:1em}}div{{display:flex;flex-wrap:wrap}}"
             "figure{{margin:4px;text-align:center}}img{{height:112px;image-rendering:pixelated}}"
             "</style>\n<h1>{}</h1>\n",
             html(title), html(title)) +
         text + "</html>\n";
}

}  // namespace ofsdp::runtime
