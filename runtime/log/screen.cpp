#include "runtime/log/screen.h"

#include <algorithm>

#include "kernels/base/format.h"
#include "kernels/base/readable.h"

namespace ofsdp::runtime {
namespace {

constexpr size_t kWidth = 100;
constexpr int kSettingLines = 6;
constexpr int kNoticeLines = 7;    // as many as there can be
constexpr size_t kShares = 5;      // of memory
constexpr size_t kPeaksShown = 4;  // ranks

std::string memory_line(const OpeningFacts& facts) {
  std::vector<MemoryShare> shares = facts.memory;
  std::ranges::stable_sort(shares, std::greater(), &MemoryShare::bytes);
  shares.resize(std::min(shares.size(), kShares));
  std::vector<std::string> parts;
  for (const MemoryShare& share : shares) {
    if (share.bytes > 0) parts.push_back(share.what + " " + readable_bytes(share.bytes));
  }
  return wrapped(format_text("memory: {} a rank: ", readable_bytes(facts.planned_bytes)), parts, 2);
}

std::string peak_line(const std::vector<uint64_t>& peaks) {
  if (peaks.size() == 1) return "peak memory: " + readable_bytes(peaks[0]) + "\n";
  if (peaks.size() <= kPeaksShown) {
    std::vector<std::string> each;
    for (const uint64_t bytes : peaks) each.push_back(readable_bytes(bytes));
    return format_text("peak memory: {} (ranks 0 to {})\n", joined(each, ", "), peaks.size() - 1);
  }
  const auto [least, most] = std::ranges::minmax_element(peaks);
  return format_text("peak memory: {} (rank {}, which has most) to {} (rank {})\n",
                     readable_bytes(*most), most - peaks.begin(), readable_bytes(*least),
                     least - peaks.begin());
}

std::string skipped_text(const ClosingFacts& facts) {
  if (facts.skipped == 0) return "";
  return format_text(" ({} skipped: gradients in float16 were not finite)", facts.skipped);
}

}  // namespace

std::string wrapped(const std::string& label, const std::vector<std::string>& items, int most) {
  const std::string more = ", ... and 9999 more (--verbose on)";
  size_t left = 0;  // columns that the items from this one on take
  for (const std::string& item : items) left += item.size() + 2;
  std::string text = label;
  size_t width = label.size();
  int lines = 1;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string& item = items[i];
    const bool all_fit = width + left <= kWidth;
    const size_t room = lines == most && !all_fit ? kWidth - more.size() : kWidth - 1;
    if (i > 0 && width + item.size() + 2 > room) {
      if (lines == most) {
        return text + format_text(", ... and {} more (--verbose on)\n", items.size() - i);
      }
      text += ",\n" + std::string(label.size(), ' ');
      width = label.size();
      ++lines;
    } else if (i > 0) {
      text += ", ";
      width += 2;
    }
    text += item;
    width += item.size();
    left -= item.size() + 2;
  }
  return text + "\n";
}

std::string opening_text(const OpeningFacts& facts) {
  std::string text = format_text(
      "{}: trains {} of {}, {} numbers (all: --verbose on)\n", facts.model, facts.trained_tensors,
      plural(facts.tensors, "tensor"), readable_count(facts.trained_numbers));
  text += "loss: " + facts.loss + "\n";
  if (!facts.settings.empty()) text += wrapped("settings: ", facts.settings, kSettingLines);
  if (!facts.fused.empty()) text += wrapped("fused: ", facts.fused, 1);
  if (!facts.wrap_notice.empty()) text += facts.wrap_notice + "\n";
  const auto notices = std::min<size_t>(facts.notices.size(), kNoticeLines);
  for (size_t i = 0; i < notices; ++i) text += facts.notices[i] + "\n";
  text += memory_line(facts);
  return text + ranks_line(facts);
}

std::string ranks_line(const OpeningFacts& facts) {
  return format_text("{}, {}, {} each, {}\n", facts.strategy, plural(facts.ranks, "rank"),
                     plural(facts.threads, "thread"), plural(facts.units, "unit"));
}

std::string closing_text(const ClosingFacts& facts) {
  std::string text =
      format_text("done: {}{}{} in {}, {} {}/s, {} ms an update (median)\n",
                  plural(facts.updates, "update"), skipped_text(facts),
                  facts.stopped_early ? ", stopped early," : "", readable_seconds(facts.seconds),
                  readable_number(facts.rate), facts.rated, readable_number(facts.median_step_ms));
  return text + peak_line(facts.peak_bytes) + facts.exposed + "\n";
}

std::string written_text(const std::vector<WrittenFile>& files) {
  std::string text;
  for (const WrittenFile& file : files) {
    text += format_text("wrote {}{}\n", file.path,
                        file.what.empty() ? "" : format_text(" ({})", file.what));
  }
  return text;
}

}  // namespace ofsdp::runtime
