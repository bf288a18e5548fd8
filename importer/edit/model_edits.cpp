#include "importer/edit/model_edits.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "importer/edit/adapter_file.h"
#include "importer/edit/model_editor.h"
#include "importer/normalize/onnx_import.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

// Merged copies: an older exporter merged initializers with equal values (zeros and ones, where
// norms and biases start), although several modules train their own.
//
// find_merged names initializers with equal elements that several modules in a repeated block read,
// or one reader through an Identity, or as a running statistic.
// untie gives each reader a copy: NAME, NAME.1, ... in the order in which nodes first use the
// value. A reader is a node that takes NAME, or an Identity over it.
//
// Errors: kInput for a pattern without a match; kFault if the file cannot be read.

struct MergedCopy {
  std::string name;
  size_t readers = 0;
};
Result<std::vector<MergedCopy>> find_merged(const OnnxFile& file);

constexpr int kOtherInputs = -1;

struct CopyReader {
  int node = 0;
  int input = kOtherInputs;  // of a running statistic
  bool statistic = false;    // it, or all that it feeds through an Identity
  int first_use = 0;
  std::string module;  // "": unknown
  std::string op;
};

class Copies {
 public:
  explicit Copies(const onnx::GraphProto& graph) : graph_(graph), uses_(graph) {}

  // Returns readers in first-use order.
  std::vector<CopyReader> readers(const std::string& name) const {
    std::vector<CopyReader> list;
    for (const ProtoUse& use : uses_.readers(name)) {
      const int input = is_statistic(use) ? use.input : kOtherInputs;
      const auto same = [&](const CopyReader& r) { return r.node == use.node && r.input == input; };
      if (std::ranges::any_of(list, same)) continue;
      const int first = first_use(use.node);
      const int told_by = first == kNever ? use.node : first;
      const auto& teller = graph_.node(told_by);
      list.push_back(
          {use.node, input, feeds_statistics(use), first, module_of(teller), teller.op_type()});
    }
    std::ranges::stable_sort(list, {}, &CopyReader::first_use);
    return list;
  }

  // Returns whether the reader was a tensor of its own: an Identity keeps its name, or it is a
  // running statistic.
  bool is_apart(const CopyReader& reader) const {
    return reader.input != kOtherInputs || is_identity(reader.node);
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();

  bool is_statistic(const ProtoUse& use) const {
    const auto& proto = graph_.node(use.node);
    return proto.op_type() == "BatchNormalization" && short_domain(proto.domain()).empty() &&
           use.input > 2;
  }
  bool feeds_statistics(const ProtoUse& use) const {
    if (!is_identity(use.node)) return is_statistic(use);
    const auto& next = uses_.readers(graph_.node(use.node).output(0));
    return !next.empty() && std::ranges::all_of(next, [this](const ProtoUse& reader) {
      return feeds_statistics(reader);
    });
  }

  int first_use(int node) const {
    if (!is_identity(node)) return node;
    int first = kNever;
    for (const ProtoUse& use : uses_.readers(graph_.node(node).output(0))) {
      first = std::min(first, use.node == node ? kNever : first_use(use.node));
    }
    return first;
  }
  bool is_identity(int node) const {
    const auto& proto = graph_.node(node);
    return proto.op_type() == "Identity" && short_domain(proto.domain()).empty();
  }

  const onnx::GraphProto& graph_;
  const ProtoUses uses_;
};

bool has_number(const std::string& module) {
  for (size_t at = 0; at < module.size();) {
    const size_t end = std::min(module.find('.', at), module.size());
    const std::string_view piece = std::string_view(module).substr(at, end - at);
    if (!piece.empty() &&
        std::ranges::all_of(piece, [](unsigned char c) { return isdigit(c) != 0; })) {
      return true;
    }
    at = end + 1;
  }
  return false;
}

// Returns whether several modules read it, at least two in a numbered block list. If modules are
// unknown: whether nodes with the same operator read it.
bool of_repeated_block(const std::vector<CopyReader>& readers) {
  std::set<std::string> modules, operators;
  int numbered = 0;
  size_t unknown = 0;
  for (const CopyReader& reader : readers) {
    if (reader.module.empty()) ++unknown;
    if (reader.module.empty()) operators.insert(reader.op);
    if (modules.insert(reader.module).second && has_number(reader.module)) ++numbered;
  }
  return numbered >= 2 || unknown > operators.size();
}

Result<bool> all_equal(const OnnxFile& file, const Initializer& weight) {
  constexpr int64_t kChunk = 4096;
  float first = 0;
  OFSDP_RETURN_IF_ERROR(file.read(weight, 0, {&first, 1}));
  std::vector<float> chunk(kChunk);
  for (int64_t at = 0; at < weight.shape.numel(); at += kChunk) {
    const auto part =
        std::span(chunk).first(static_cast<size_t>(std::min(kChunk, weight.shape.numel() - at)));
    OFSDP_RETURN_IF_ERROR(file.read(weight, at, part));
    if (std::ranges::any_of(part, [&](float x) { return x != first; })) return false;
  }
  return true;
}

void give_copies(ModelEditor& editor, const Initializer& weight) {
  const Initializer original = weight;  // the list grows
  onnx::GraphProto& graph = editor.graph();
  const std::vector<CopyReader> readers = Copies(graph).readers(original.name);
  for (size_t k = 1; k < readers.size(); ++k) {
    const std::string name = editor.free_name(format_text("{}.{}", original.name, k));
    editor.add_copy(name, original);
    onnx::NodeProto& node = *graph.mutable_node(readers[k].node);
    for (int i = 0; i < node.input_size(); ++i) {
      const bool statistic = i > 2 && node.op_type() == "BatchNormalization";
      const bool read = (statistic ? i : kOtherInputs) == readers[k].input;
      if (read && node.input(i) == original.name) node.set_input(i, name);
    }
  }
}

Result<std::vector<MergedCopy>> find_merged(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  std::vector<MergedCopy> merged;
  const Copies copies(model.graph());
  for (const Initializer& weight : file.initializers()) {
    const bool floats = is_floating(weight.dtype) || weight.quantization != nullptr;
    if (!floats || weight.shape.numel() < 2) continue;
    const std::vector<CopyReader> readers = copies.readers(weight.name);
    const bool apart = std::ranges::any_of(
        readers, [&](const CopyReader& reader) { return copies.is_apart(reader); });
    if (readers.size() < 2 || !(apart || of_repeated_block(readers))) continue;
    const auto statistics = std::ranges::count(readers, true, &CopyReader::statistic);
    const bool mixed = statistics > 0 && statistics < std::ssize(readers);
    OFSDP_ASSIGN_OR_RETURN(const bool equal, all_equal(file, weight));
    if (equal || mixed) merged.push_back({weight.name, readers.size()});
  }
  return merged;
}

// Returns the scales and zero points of integer weights, each with one of these weights.
std::map<std::string, std::string> numbers_of_integers(const ModelEditor& editor) {
  std::map<std::string, std::string> numbers;
  for (const Initializer& weight : editor.weights()) {
    if (weight.quantization == nullptr) continue;
    const Quantization& q = *weight.quantization;
    for (const std::string& name : q.factors) numbers[name] = weight.name;
    for (const std::string& name : {q.scale, q.zero_point}) numbers[name] = weight.name;
  }
  numbers.erase("");
  return numbers;
}

// `patterns`: names, globs, or "auto" for find_merged's result. Returns whether anything changed.
Result<bool> untie(ModelEditor& editor, const std::vector<std::string>& patterns) {
  std::set<std::string> chosen;
  const auto numbers = numbers_of_integers(editor);
  const Copies copies(editor.graph());
  for (const std::string& pattern : patterns) {
    OFSDP_REJECT_IF(numbers.contains(pattern),
                    "--untie {}: expected a weight, found a scale or zero point of '{}'", pattern,
                    numbers.at(pattern));
    if (pattern == "auto") {
      OFSDP_ASSIGN_OR_RETURN(const auto merged, find_merged(editor.file()));
      for (const MergedCopy& copy : merged) chosen.insert(copy.name);
      continue;
    }
    const bool literal = editor.weight(pattern) != nullptr;
    bool found = false;
    for (const Initializer& weight : editor.weights()) {
      const bool matches =
          literal ? weight.name == pattern : fnmatch(pattern.c_str(), weight.name.c_str(), 0) == 0;
      if (matches) chosen.insert(weight.name);
      found = found || matches;
    }
    OFSDP_REJECT_IF(!found, "--untie {}: matches no initializer of {}", pattern, editor.path());
    // A glob or auto may find nothing to untie.
    OFSDP_REJECT_IF(literal && copies.readers(pattern).size() < 2,
                    "--untie {}: expected a weight that several nodes of the graph read, found one "
                    "with at most one reader; without --untie this run trains the same",
                    pattern);
  }
  std::erase_if(chosen, [&](const std::string& name) { return numbers.contains(name); });
  const size_t before = editor.weights().size();
  for (const std::string& name : chosen) give_copies(editor, *editor.weight(name));
  return editor.weights().size() > before;
}

using Json = nlohmann::json;

// Returns the file to write: with untied copies, the new head and the weights of --lora-from.
// `taken`: gets the names of the weights whose values --lora-from has as a whole.
Result<std::shared_ptr<const OnnxFile>> base_of(OnnxFile file, const ModelEdits& edits,
                                                std::vector<std::string>& taken) {
  auto given = std::make_shared<const OnnxFile>(std::move(file));
  const std::string& from = edits.adapters.patterns.empty() ? std::string() : edits.adapters.from;
  if (edits.untie.empty() && !edits.head && !edits.added && from.empty()) return given;
  OFSDP_ASSIGN_OR_RETURN(ModelEditor editor, ModelEditor::make(given));
  OFSDP_ASSIGN_OR_RETURN(const bool untied, untie(editor, edits.untie));
  if (edits.head) {
    OFSDP_RETURN_IF_ERROR(replace_head(editor, *edits.head, edits.prediction, edits.seed));
  }
  if (edits.added) {
    OFSDP_RETURN_IF_ERROR(add_head(editor, *edits.added, edits.prediction, edits.seed));
  }
  if (!from.empty()) {
    OFSDP_ASSIGN_OR_RETURN(taken, take_whole_weights(editor, from));
  }
  if (!untied && !edits.head && !edits.added && taken.empty()) return given;
  OFSDP_ASSIGN_OR_RETURN(OnnxFile edited, editor.finish());
  return std::make_shared<const OnnxFile>(std::move(edited));
}

}  // namespace

Result<EditedModel> edit_model(OnnxFile file, const ModelEdits& edits) {
  EditedModel model;
  OFSDP_ASSIGN_OR_RETURN(model.base, base_of(std::move(file), edits, model.taken));
  OFSDP_ASSIGN_OR_RETURN(ModelEditor editor, ModelEditor::make(model.base));
  if (edits.added) model.added = edits.added->weights();
  if (!edits.adapters.patterns.empty()) {
    AdapterSpec spec = edits.adapters;
    spec.whole = model.added;
    OFSDP_ASSIGN_OR_RETURN(model.adapters, add_adapters(editor, spec));
    model.spec = std::move(spec);
  }
  OFSDP_ASSIGN_OR_RETURN(model.file, editor.finish());
  return model;
}

Result<std::string> merged_copies_warning(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const auto merged, find_merged(file));
  if (merged.empty()) return std::string();
  std::vector<std::string> names;
  for (const MergedCopy& copy : merged) {
    names.push_back(format_text("'{}' ({} readers)", copy.name, copy.readers));
  }
  return format_text(
      "{}: several modules share what an exporter may have merged since the values were equal: {} "
      "(--untie auto gives each its own)",
      file.path(), joined(names, ", "));
}

std::string text_of(const ModelEdits& edits) {
  if (!edits.any()) return "";
  Json json = {{"untie", edits.untie}, {"prediction", edits.prediction}, {"seed", edits.seed}};
  json["head"] = edits.head ? Json(*edits.head) : Json();
  if (edits.added) json["added"] = {{"outputs", edits.added->outputs}, {"name", edits.added->name}};
  const AdapterSpec& spec = edits.adapters;
  json["lora"] = {{"patterns", spec.patterns},
                  {"rank", spec.rank},
                  {"alpha", spec.used_alpha()},
                  {"dropout", spec.dropout}};
  if (!spec.from.empty()) json["lora"]["from"] = spec.from;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ModelEdits> edits_from(const std::string& text) {
  ModelEdits edits;
  if (text.empty()) return edits;
  try {
    const Json json = Json::parse(text);
    json.at("untie").get_to(edits.untie);
    json.at("prediction").get_to(edits.prediction);
    json.at("seed").get_to(edits.seed);
    if (!json.at("head").is_null()) edits.head = json.at("head").get<int64_t>();
    if (json.contains("added")) {
      const Json& added = json.at("added");
      edits.added = AddedHead{added.at("outputs").get<int64_t>(), added.at("name")};
    }
    const Json& lora = json.at("lora");
    lora.at("patterns").get_to(edits.adapters.patterns);
    lora.at("rank").get_to(edits.adapters.rank);
    edits.adapters.alpha = lora.at("alpha").get<double>();
    lora.at("dropout").get_to(edits.adapters.dropout);
    edits.adapters.from = lora.value("from", "");
  } catch (const std::exception& error) {
    return input_error("expected edits of a model, found: {}", error.what());
  }
  const bool fits = edits.adapters.rank > 0 && edits.head.value_or(1) > 0 &&
                    edits.added.value_or(AddedHead()).outputs > 0;
  if (!fits) return input_error("expected edits of a model with a rank and a head above 0");
  edits.adapters.seed = edits.seed;
  return edits;
}

}  // namespace ofsdp::importer
