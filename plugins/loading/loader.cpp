#include "plugins/loading/loader.h"

#include <cstdlib>
#include <filesystem>
#include <map>

#include "kernels/base/reject.h"
#include "plugins/loading/operators.h"

namespace ofsdp::plugins {
namespace {

ofsdp_update update_of(const OptimizerSettings& s, const OptimizerSpan<float>& span) {
  return {.struct_size = sizeof(ofsdp_update),
          .param = span.param,
          .grad = span.grad,
          .state = span.state,
          .count = span.count,
          .step = span.step,
          .lr = span.lr,
          .weight_decay = span.weight_decay,
          .momentum = s.momentum,
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .rho = s.rho,
          .nesterov = s.nesterov ? 1 : 0};
}

OptimizerDef optimizer_def(const PluginLibraryPtr& library, const ofsdp_optimizer& given) {
  OptimizerDef def;
  def.name = format_text("plugin:{}", given.name);
  const std::vector<std::string> states(given.states, given.states + given.num_states);
  def.states = [states](const OptimizerSettings&) { return states; };
  def.update = [library, given](const OptimizerSettings& s, const OptimizerSpan<float>& span) {
    const ofsdp_update update = update_of(s, span);
    given.update(library->host(), &update);
  };
  if (given.direction == nullptr) return def;
  def.direction = [library, given](const OptimizerSettings& s, const OptimizerSpan<float>& span,
                                   float* direction) {
    const ofsdp_update update = update_of(s, span);
    given.direction(library->host(), &update, direction);
  };
  def.step_length = [library, given](const OptimizerSettings& s, const ParameterNorms& n) {
    const ofsdp_update whole = update_of(s, {nullptr, nullptr, nullptr, n.count, n.lr, 0, n.step});
    return given.step_length(library->host(), &whole, n.param, n.direction);
  };
  return def;
}

class Loader {
 public:
  explicit Loader(bool may_override) : may_override_(may_override) {}

  Result<LoadedPlugins> load(const std::vector<std::string>& names) {
    const char* search = std::getenv("OFSDP_PLUGIN_PATH");
    loaded_.optimizers = optimizer_list();
    for (const std::string& name : names) {
      OFSDP_ASSIGN_OR_RETURN(const std::string path,
                             find_plugin(name, search == nullptr ? "" : search));
      OFSDP_ASSIGN_OR_RETURN(PluginLibraryPtr library, PluginLibrary::open(path));
      OFSDP_RETURN_IF_ERROR(add(library));
      loaded_.libraries.push_back(std::move(library));
    }
    fill_registry();
    return std::move(loaded_);
  }

 private:
  Status add(const PluginLibraryPtr& library) {
    OFSDP_ASSIGN_OR_RETURN(auto operators, plugin_operators(library));
    for (auto& op : operators) {
      OFSDP_RETURN_IF_ERROR(claim("operator " + op->full_name(), library->path()));
      OFSDP_REJECT_IF(built_in_.find(op->domain, op->name) != nullptr && !may_override_,
                      "{}: operator {} is built in; --plugin-override lets a plug-in replace it",
                      library->path(), op->full_name());
      op->known = known_;
      loaded_.operators.push_back(std::move(op));
    }
    OFSDP_ASSIGN_OR_RETURN(const auto optimizers, plugin_optimizers(*library));
    for (const ofsdp_optimizer& optimizer : optimizers) {
      OFSDP_RETURN_IF_ERROR(claim(format_text("optimizer {}", optimizer.name), library->path()));
      loaded_.optimizers.push_back(optimizer_def(library, optimizer));
    }
    return {};
  }

  Status claim(const std::string& what, const std::string& path) {
    const auto [owner, first] = owners_.try_emplace(what, path);
    if (first) return {};
    return input_error("{}: {} is already offered by {}", path, what, owner->second);
  }

  void fill_registry() {
    std::map<std::string, PluginOperatorPtr> own;
    for (const PluginOperatorPtr& op : loaded_.operators) own[op->full_name()] = op;
    for (const auto& [key, op] : built_in_.all()) {
      const auto replaced = own.find(op.full_name());
      loaded_.registry.add(replaced == own.end() ? op : overridden(op, replaced->second));
    }
    for (const PluginOperatorPtr& op : loaded_.operators) {
      if (built_in_.find(op->domain, op->name) == nullptr) loaded_.registry.add(plugin_op_def(op));
      if (has_backward_kernel(*op)) loaded_.registry.add(plugin_backward_def(op));
    }
    for (const auto& [key, op] : loaded_.registry.all()) known_->push_back(op.full_name());
  }

  bool may_override_;
  Registry built_in_ = make_registry();
  LoadedPlugins loaded_;
  std::map<std::string, std::string> owners_;
  std::shared_ptr<std::vector<std::string>> known_ = std::make_shared<std::vector<std::string>>();
};

}  // namespace

Result<std::string> find_plugin(const std::string& name, const std::string& search_path) {
  if (name.find('/') != std::string::npos) return name;
  std::error_code ignored;
  for (size_t begin = 0; begin <= search_path.size();) {
    const size_t end = std::min(search_path.find(':', begin), search_path.size());
    const std::string folder = search_path.substr(begin, end - begin);
    for (const std::string& file : {name, name + ".so", "lib" + name + ".so"}) {
      const std::string path = folder + "/" + file;
      if (!folder.empty() && std::filesystem::is_regular_file(path, ignored)) return path;
    }
    begin = end + 1;
  }
  const bool here = std::filesystem::is_regular_file(name, ignored);
  return input_error("--plugin {}: no such file in OFSDP_PLUGIN_PATH '{}'{}", name, search_path,
                     here ? format_text("; the one here is ./{}", name) : "");
}

Result<LoadedPlugins> load_plugins(const std::vector<std::string>& names, bool may_override) {
  auto loaded = Loader(may_override).load(names);
  if (loaded.ok() || loaded.error().message().starts_with("--plugin")) return loaded;
  return std::move(loaded).status().with_prefix("--plugin");
}

}  // namespace ofsdp::plugins
