#include <onnx/onnx_pb.h>

#include <algorithm>
#include <optional>
#include <set>

#include "importer/normalize/onnx_import.h"
#include "kernels/base/budgets.h"
#include "kernels/base/text.h"

namespace ofsdp::importer {
namespace {

using Path = std::vector<std::string>;

// Nobody has written longer paths as names. Deeper modules count as part of the last kept one,
// because a module tree stores each path.
constexpr size_t kMaxPathText = 4096;

// Splits the text at any separator, without empty pieces, at most kMaxDepth.
Path pieces(const std::string& text, const char* separators, size_t most = kMaxPathText) {
  Path result;
  for (size_t at = 0; at < text.size() && result.size() < size_t{kMaxDepth};) {
    const size_t end = std::min(text.find_first_of(separators, at), text.size());
    if (end > most) break;
    if (end > at) result.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return result;
}

// Parses "['', 'encoder', 'linear']", as Python prints a string list.
std::vector<std::string> python_list(const std::string& text) {
  std::vector<std::string> list;
  for (size_t at = 0; (at = text.find_first_of("'\"", at)) != std::string::npos;) {
    const size_t end = text.find(text[at], at + 1);
    if (end == std::string::npos) break;
    list.push_back(text.substr(at + 1, end - at - 1));
    at = end + 1;
  }
  return list;
}

const std::string* metadata(const onnx::NodeProto& node, const char* key) {
  for (const auto& entry : node.metadata_props()) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

class Reader {
 public:
  std::string read(const onnx::NodeProto& node) {
    const std::optional<Path> scope = scope_of(node);
    return scope ? joined(*scope, ".") : "";
  }

  ModuleScopes read(const onnx::ModelProto& model, const std::vector<std::string>& initializers) {
    wanted_.insert(initializers.begin(), initializers.end());
    visit(model.graph(), std::nullopt);
    for (const std::string& name : initializers) scopes_.initializers[name] = module_of(name);
    return std::move(scopes_);
  }

 private:
  struct Uses {
    Path common;         // shared by all scopes
    bool scoped = true;  // every node that reads it has a scope
    bool one_scope = true;
  };

  // `outer`: scope of the node that holds the graph.
  void visit(const onnx::GraphProto& graph, const std::optional<Path>& outer) {
    for (const auto& node : graph.node()) {
      std::optional<Path> scope = scope_of(node);
      if (!scope) scope = outer;
      for (const std::string& name : node.input()) {
        if (wanted_.contains(name)) use(name, scope);
      }
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) visit(attribute.g(), scope);
      }
    }
  }

  void use(const std::string& name, const std::optional<Path>& scope) {
    const auto [it, first] = uses_.try_emplace(name);
    Uses& uses = it->second;
    if (!scope) {
      uses.scoped = false;
    } else if (first) {
      uses.common = *scope;
    } else if (uses.common != *scope) {
      uses.one_scope = false;
      const auto end = std::ranges::mismatch(uses.common, *scope).in1;
      uses.common.erase(end, uses.common.end());
    }
  }

  std::optional<Path> scope_of(const onnx::NodeProto& node) {
    if (const auto* names = metadata(node, "pkg.torch.onnx.name_scopes")) {
      const auto* classes = metadata(node, "pkg.torch.onnx.class_hierarchy");
      return torch_scope(python_list(*names), classes ? python_list(*classes) : Path{});
    }
    if (const auto* text = metadata(node, "namespace")) return namespace_scope(*text);
    if (node.name().find('/') == std::string::npos) return {};
    Path path = pieces(node.name().substr(0, node.name().rfind('/')), "/.");
    return path;
  }

  std::optional<Path> torch_scope(const Path& names, const Path& classes) {
    if (names.size() < 2) return {};  // only the operation: the exporter made the node itself
    for (size_t i = 0; i + 1 < names.size() && i < classes.size(); ++i) {
      scopes_.classes[joined(pieces(names[i], "."), ".")] = classes[i];
    }
    return pieces(names[names.size() - 2], ".");
  }

  std::optional<Path> namespace_scope(const std::string& text) {
    Path names, classes;
    for (const std::string& entry : pieces(text, "/", text.size())) {
      const size_t colon = entry.find(": ");
      if (colon == std::string::npos) return {};
      names.push_back(entry.substr(0, colon));
      classes.push_back(entry.substr(colon + 2));
    }
    return torch_scope(names, classes);
  }

  std::string module_of(const std::string& name) const {
    Path by_name = pieces(name, "/.");
    if (!by_name.empty()) by_name.pop_back();
    const auto found = uses_.find(name);
    if (found == uses_.end() || !found->second.scoped) return joined(by_name, ".");
    const Path& common = found->second.common;
    const bool deeper = std::ranges::mismatch(common, by_name).in1 == common.end();
    return joined(found->second.one_scope && deeper ? by_name : common, ".");
  }

  ModuleScopes scopes_;
  std::set<std::string> wanted_;  // initializers
  std::map<std::string, Uses> uses_;
};

}  // namespace

std::string module_of(const onnx::NodeProto& node) { return Reader().read(node); }

ModuleScopes module_scopes(const onnx::ModelProto& model,
                           const std::vector<std::string>& initializers) {
  return Reader().read(model, initializers);
}

}  // namespace ofsdp::importer
