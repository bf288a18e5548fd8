#include "importer/edit/untie.h"

#include <fnmatch.h>

#include <algorithm>
#include <cctype>
#include <limits>

#include "importer/edit/model_editor.h"
#include "importer/edit/proto_uses.h"
#include "importer/normalize/module_scopes.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

struct CopyReader {
  int node = 0;
  int first_use = 0;
  std::string module;  // "": unknown
  std::string op;
};

class Copies {
 public:
  explicit Copies(const onnx::GraphProto& graph) : graph_(graph), uses_(graph) {}

  // In the order of first uses.
  std::vector<CopyReader> readers(const std::string& name) const {
    std::vector<CopyReader> list;
    for (const ProtoUse& use : uses_.readers(name)) {
      const auto same = [&](const CopyReader& r) { return r.node == use.node; };
      if (std::ranges::any_of(list, same)) continue;
      const int first = first_use(use.node);
      const int told_by = first == kNever ? use.node : first;
      const auto& teller = graph_.node(told_by);
      list.push_back({use.node, first, module_of(teller), teller.op_type()});
    }
    std::ranges::stable_sort(list, {}, &CopyReader::first_use);
    return list;
  }

 private:
  static constexpr int kNever = std::numeric_limits<int>::max();

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

// Several modules, at least two in a block that is one of a numbered list. Where the exporter did
// not say which modules they are: nodes of the same operator.
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
    for (auto& input : *graph.mutable_node(readers[k].node)->mutable_input()) {
      if (input == original.name) input = name;
    }
  }
}

}  // namespace

Result<std::vector<MergedCopy>> find_merged(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const onnx::ModelProto model, parse_model(file));
  std::vector<MergedCopy> merged;
  const Copies copies(model.graph());
  for (const Initializer& weight : file.initializers()) {
    const bool floats = is_floating(weight.dtype) || weight.quantization != nullptr;
    if (!floats || weight.shape.numel() < 2) continue;
    const std::vector<CopyReader> readers = copies.readers(weight.name);
    if (readers.size() < 2 || !of_repeated_block(readers)) continue;
    OFSDP_ASSIGN_OR_RETURN(const bool equal, all_equal(file, weight));
    if (equal) merged.push_back({weight.name, readers.size()});
  }
  return merged;
}

Result<bool> untie(ModelEditor& editor, const std::vector<std::string>& patterns) {
  std::set<std::string> chosen;
  for (const std::string& pattern : patterns) {
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
  }
  const size_t before = editor.weights().size();
  for (const std::string& name : chosen) give_copies(editor, *editor.weight(name));
  return editor.weights().size() > before;
}

}  // namespace ofsdp::importer
