// The lines before the first step, and lists in lines.
#include "runtime/log/screen.h"

#include <algorithm>

#include "kernels/base/text.h"

namespace ofsdp::runtime {

namespace {

constexpr int kSettingLines = 5;
constexpr int kNoticeLines = 7;  // there can be no more
constexpr int kMemoryLines = 2, kFileLines = 2;
constexpr size_t kShares = 5;       // of memory
constexpr size_t kIndent = 10;      // at most
constexpr size_t kFewColumns = 40;  // narrower terminals fold the lines themselves

// Returns how many lines have as much room as `lines` of kTextColumns.
int lines_at(size_t columns, int lines) {
  const auto room = static_cast<size_t>(lines) * kTextColumns;
  return static_cast<int>((room + columns - 1) / columns);
}

std::string model_line(const OpeningFacts& facts) {
  if (!facts.trains) {
    return format_text("model: {}, {} numbers in {}", facts.model, readable_count(facts.numbers),
                       plural(facts.tensors, "tensor"));
  }
  const int64_t frozen = facts.frozen_tensors;
  return format_text("model: {}, trains {} numbers in {} of {}{}", facts.model,
                     readable_count(facts.trained_numbers), facts.trained_tensors,
                     plural(facts.tensors, "tensor"),
                     frozen == 0 ? "" : format_text("; {} frozen by the module", frozen));
}

std::string training_rows(const DataFacts& data) {
  if (data.rows == 0) return format_text("{}, batches of {}", data.name, data.batch);
  return format_text("{}, {} rows, {} batch{} of {} an epoch", data.name, readable_count(data.rows),
                     readable_count(data.batches), data.batches == 1 ? "" : "es", data.batch);
}

std::string data_line(const OpeningFacts& facts) {
  const DataFacts& data = facts.data;
  const std::string from = data.eval_name.empty() ? "" : " of " + data.eval_name;
  const std::string eval = format_text("{} rows{}", readable_count(data.eval_rows), from);
  if (!facts.trains) return "data: " + (from.empty() ? data.name + ", " + eval : eval);
  const std::string text = "data: " + training_rows(data);
  return text + (data.eval_rows > 0 ? "; evaluation: " + eval : "; no evaluation");
}

std::string memory_line(const OpeningFacts& facts, size_t columns) {
  std::vector<MemoryShare> shares = facts.memory;
  std::ranges::stable_sort(shares, std::greater(), &MemoryShare::bytes);
  shares.resize(std::min(shares.size(), kShares));
  std::vector<std::string> parts;
  for (const MemoryShare& share : shares) {
    if (share.bytes > 0) parts.push_back(share.what + " " + readable_bytes(share.bytes));
  }
  return wrapped(format_text("memory: {} a rank: ", readable_bytes(facts.planned_bytes)), parts,
                 lines_at(columns, kMemoryLines), columns);
}

std::string device_line(const OpeningFacts& facts) {
  return format_text("{}{}, {}, {} each",
                     facts.device.empty() ? "" : "device: " + facts.device + "; ", facts.strategy,
                     plural(facts.ranks, "rank"), plural(facts.threads, "thread"));
}

bool keeps_weights(const std::vector<WrittenFile>& files) {
  return std::ranges::any_of(files, [](const WrittenFile& file) {
    return file.what.empty() || file.what == "adapter" || file.what == "checkpoints";
  });
}

// Says first if the trained weights will be lost. Empty for an evaluation without files.
std::string files_text(const OpeningFacts& facts, size_t columns) {
  std::vector<std::string> files;
  if (facts.trains && facts.files.empty()) {
    files.push_back("nothing (--output FILE.onnx keeps the trained model)");
  } else if (facts.trains && !keeps_weights(facts.files)) {
    files.push_back("no trained model (--output FILE.onnx keeps it)");
  }
  for (const WrittenFile& file : facts.files) {
    const std::string path = escaped(file.path);
    files.push_back(file.what.empty() ? path : format_text("{} ({})", path, file.what));
  }
  if (files.empty()) return "";
  return wrapped("writes: ", files, lines_at(columns, kFileLines), columns);
}

}  // namespace

std::string wrapped(const std::string& label, const std::vector<std::string>& items, int most,
                    size_t columns) {
  columns = std::max(columns, kFewColumns);
  const std::string more = ", ... and 9999 more (--verbose)";
  size_t left = 0;  // columns for the items that are left
  for (const std::string& item : items) left += item.size() + 2;
  std::string text = label;
  const size_t indent = std::min(label.size(), kIndent);  // of other lines
  size_t width = label.size();
  int lines = 1;
  for (size_t i = 0; i < items.size(); ++i) {
    const std::string& item = items[i];
    const bool all_fit = width + left <= columns;
    const size_t room = lines == most && !all_fit ? columns - more.size() : columns - 1;
    if (i > 0 && width + item.size() + 2 > room) {
      if (lines == most) {
        return text + format_text(", ... and {} more (--verbose)\n", items.size() - i);
      }
      text += ",\n" + std::string(indent, ' ');
      width = indent;
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

std::string folded(const std::string& line, size_t columns) {
  constexpr std::string_view kInner = "  ", kItemEnds = ",; ";
  columns = std::max(columns, kFewColumns);
  std::string text;
  std::string_view rest = line;
  for (size_t room = columns; rest.size() > room; room = columns - kInner.size()) {
    size_t end = std::string_view::npos;  // the space at which the line ends
    for (size_t at = rest.rfind(' ', room); at != std::string_view::npos && at > 0;
         at = rest.rfind(' ', at - 1)) {
      if (end == std::string_view::npos) end = at;
      if (kItemEnds.find(rest[at - 1]) == std::string_view::npos) continue;
      if (at > room / 2) end = at;
      break;
    }
    if (end == std::string_view::npos) end = rest.find(' ', room);
    if (end == std::string_view::npos) break;
    const size_t used = rest.find_last_not_of(' ', end) + 1;
    text += std::string(rest.substr(0, used)) + "\n" + std::string(kInner);
    rest.remove_prefix(end + 1);
  }
  return text + std::string(rest);
}

std::string folded_lines(const std::string& text, std::optional<size_t> columns) {
  if (!columns) return text;
  std::string lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    lines += folded(text.substr(begin, end - begin), *columns) + "\n";
    begin = end + 1;
  }
  return lines;
}

std::string opening_text(const OpeningFacts& facts, std::optional<size_t> terminal) {
  const size_t columns = std::max(terminal.value_or(kTextColumns), kFewColumns);
  const auto line = [&](const std::string& text) {
    return (terminal ? folded(text, columns) : text) + "\n";
  };
  std::string text = line(model_line(facts)) + line(data_line(facts)) + line("loss: " + facts.loss);
  if (!facts.settings.empty()) {
    text += wrapped("settings: ", facts.settings, lines_at(columns, kSettingLines), columns);
  }
  const auto notices = std::min<size_t>(facts.notices.size(), kNoticeLines);
  for (size_t i = 0; i < notices; ++i) text += line(facts.notices[i]);
  text += memory_line(facts, columns) + line(device_line(facts));
  return text + files_text(facts, columns);
}

std::string after_tables_text(const OpeningFacts& facts) {
  return format_text("{}\n{}\n{}, {}\n{}", model_line(facts), data_line(facts), device_line(facts),
                     plural(facts.units, "unit"), files_text(facts, kTextColumns));
}

}  // namespace ofsdp::runtime
