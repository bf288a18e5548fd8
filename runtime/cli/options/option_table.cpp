#include "runtime/cli/options/option_table.h"

#include <algorithm>

namespace ofsdp::cli {

OptionEntry entries::not_built(OptionEntry entry) {
  const std::string only = entry.show(Options());
  entry.help += " (not built yet)";
  entry.set = [only, set = entry.set, show = entry.show](Options& o, const std::string& text) {
    Verdict verdict = set(o, text);
    const bool refused = verdict.kind == Verdict::Kind::kFine && show(o) != only;
    if (refused) verdict.kind = Verdict::Kind::kNotBuilt;
    return verdict;
  };
  return entry;
}

std::vector<OptionEntry> option_table() {
  std::vector<OptionEntry> table = sharding_entries();
  for (OptionEntry& entry : training_entries()) table.push_back(std::move(entry));
  for (OptionEntry& entry : run_entries()) table.push_back(std::move(entry));
  return table;
}

const OptionEntry* find_entry(const std::vector<OptionEntry>& table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const OptionEntry& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::vector<std::string> entry_names(const std::vector<OptionEntry>& table) {
  std::vector<std::string> names;
  for (const OptionEntry& entry : table) names.push_back(entry.name);
  return names;
}

namespace {

// The mapping under `data:` goes in as it stood, its lines moved to the right.
std::string indented(const std::string& yaml) {
  std::string text = "\n  ";
  for (const char c : yaml) {
    text += c;
    if (c == '\n') text += "  ";
  }
  return text;
}

}  // namespace

std::string describe(const Options& options) {
  std::string text;
  for (const OptionEntry& entry : option_table()) {
    if (!no_effect(options, entry.name).beside.empty()) continue;
    const bool settled = options.batch.global_batch_size > 0;
    const bool sliced = options.batch.slices > 0;  // slices of a given size, however many a rank
    const std::string_view follows = sliced ? "grad-accum" : "batch-size";  // from the other two
    if (settled && entry.name == follows) continue;
    std::string key = entry.name;
    std::replace(key.begin(), key.end(), '-', '_');
    const bool mapping = key == "data" && options.run.data.kind == DataChoice::Kind::kInline;
    std::string value = mapping ? indented(options.run.data.yaml) : entry.show(options);
    if (settled && entry.name == "global-batch-size") {
      value += format_text("  # {}: {}", sliced ? "grad_accum" : "batch_size",
                           sliced ? options.batch.grad_accum : options.batch.batch_size);
    }
    text += format_text("{}:{}{}\n", key, mapping ? "" : " ", value);
  }
  return text;
}

std::string help_text() {
  std::string text =
      "fsdp-run MODEL.onnx [options]         train\n"
      "fsdp-run plan   MODEL.onnx [options]  what would happen, without doing it\n"
      "                                      (--json, --html FILE; for ranks that are not here:\n"
      "                                      --world N, --topology FILE; --operations: what\n"
      "                                      rank 0 runs, line by line)\n"
      "fsdp-run eval   MODEL.onnx [options]  loss and metrics on the evaluation data\n"
      "fsdp-run export CKPT_DIR -o OUT.onnx  a checkpoint made into one ONNX file\n"
      "                                      (--inference, --verify, --format safetensors)\n"
      "fsdp-run config [-o FILE]             ask the questions, write the YAML\n"
      "fsdp-run ops [--json]                 every operator: domain, versions, what is there\n"
      "fsdp-run make-training MODEL.onnx -o OUT.onnx  the model with the training that the "
      "options\n"
      "                                      say (--form training_info), or its gradient graph\n"
      "                                      (--form graph)\n"
      "fsdp-run check-plugin LIB.so          tries a plug-in's operators on its own samples\n"
      "\n"
      "Flags beat --config FILE (YAML: the same names with _ for -), which beats MODEL.yaml "
      "beside\n"
      "MODEL.onnx, which beats the defaults. Options; the default value comes first:\n\n";
  for (const OptionEntry& entry : option_table()) {
    text += format_text("  --{:<25} {}\n  {:27} {}\n", entry.name, entry.values, "", entry.help);
  }
  text +=
      format_text("  --{:<25} {}\n  {:27} {}\n", "config", "FILE", "", "a YAML file with options");
  return text;
}

}  // namespace ofsdp::cli
