#include "runtime/cli/options/option_table.h"

#include <algorithm>

namespace ofsdp::cli {
namespace {

// One of a few words.
template <typename Field>
OptionEntry word(std::string name, std::vector<std::string> words, Field field) {
  return entries::parsed(
      {std::move(name)}, "one of " + joined(words, ", "), field,
      [=](const std::string& text) {
        const bool known = std::ranges::count(words, text) > 0;
        return known ? std::optional(text) : std::nullopt;
      },
      yaml_quoted);
}

// The name of a file, whatever it is.
template <typename Field>
OptionEntry file(OptionEntry entry, Field field) {
  return entries::parsed(
      std::move(entry), "", field, [](const std::string& text) { return std::optional(text); },
      yaml_quoted);
}

// The flags that no file holds; the usage lines of the commands describe all but --config.
std::vector<OptionEntry> command_line_entries() {
  using namespace entries;
  const Commands plan = only(Command::kPlan), exports = only(Command::kExport);
  const auto positive = [](const std::string& text) { return parse_integer(text, 1); };
  const auto shown = [](const auto& world) { return std::to_string(world.value_or(0)); };
  return {
      bare("help", kEveryCommand, OFSDP_FIELD(help)),
      bare("json", plan | only(Command::kOps), OFSDP_FIELD(json)),
      flag(plan, parsed({"world"}, "a whole number of at least 1", OFSDP_FIELD(report.world),
                        positive, shown)),
      flag(plan, file({"topology"}, OFSDP_FIELD(report.topology))),
      flag(plan, file({"html"}, OFSDP_FIELD(report.html))),
      bare("operations", plan, OFSDP_FIELD(report.operations)),
      bare("explain", plan, OFSDP_FIELD(report.explain)),
      bare("inference", exports, OFSDP_FIELD(inference)),
      bare("verify", exports, OFSDP_FIELD(verify)),
      flag(exports, word("format", {"onnx", "safetensors"}, OFSDP_FIELD(format))),
      flag(only(Command::kMakeTraining),
           word("form", {"training_info", "graph"}, OFSDP_FIELD(form))),
      flag(only(Command::kDemo), file({"output-dir"}, OFSDP_FIELD(demo_folder))),
      flag(kEveryCommand,
           file({"config", "FILE", "a YAML file with options"}, OFSDP_FIELD(config))),
  };
}

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

std::vector<OptionEntry> option_table() {
  std::vector<OptionEntry> table;
  for (const auto& part :
       {sharding_entries(), training_entries(), run_entries(), command_line_entries()}) {
    table.insert(table.end(), part.begin(), part.end());
  }
  return table;
}

const OptionEntry* find_entry(const std::vector<OptionEntry>& table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &OptionEntry::name);
  return found == table.end() ? nullptr : &*found;
}

const OptionEntry* find_key(const std::vector<OptionEntry>& table, std::string_view name) {
  const OptionEntry* entry = find_entry(table, name);
  return entry != nullptr && entry->in_files ? entry : nullptr;
}

std::vector<std::string> entry_names(const std::vector<OptionEntry>& table) {
  std::vector<std::string> names;
  for (const OptionEntry& entry : table) {
    if (entry.in_files) names.push_back(entry.name);
  }
  return names;
}

std::string yaml_key(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string describe(const Options& options, const std::optional<BatchSizes>& sizes) {
  const bool sliced = sizes && sizes->slices > 0;  // slices of a given size, however many a rank
  const std::string_view follows = sliced ? "grad-accum" : "batch-size";  // from the other two
  Options shown = options;
  if (sizes) {
    shown.batch = {.batch_size = {sizes->batch_size},
                   .grad_accum = {sizes->grad_accum},
                   .global_batch_size = {sizes->global_batch_size}};
  }
  std::string text;
  for (const OptionEntry& entry : option_table()) {
    if (!entry.in_files || !no_effect(options, entry.name).beside.empty()) continue;
    if (sizes && entry.name == follows) continue;
    const bool mapping = entry.name == "data" && options.run.data.kind == DataChoice::Kind::kInline;
    std::string value = mapping ? indented(options.run.data.yaml) : " " + entry.show(shown);
    if (sizes && entry.name == "global-batch-size") {
      value += format_text("  # {}: {}", sliced ? "grad_accum" : "batch_size",
                           sliced ? sizes->grad_accum : sizes->batch_size);
    }
    text += yaml_key(entry.name) + ":" + value + "\n";
  }
  return text;
}

std::string help_of_options() {
  std::string text;
  for (const OptionEntry& entry : option_table()) {
    if (entry.help.empty()) continue;
    text += format_text("  --{:<25} {}\n  {:27} {}\n", entry.name, entry.values, "", entry.help);
  }
  return text;
}

}  // namespace ofsdp::cli
