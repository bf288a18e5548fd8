// Plug-ins' libraries, and load_plugins for the names after --plugin.
//
// A plug-in's shared library, opened and checked: version, completeness, names. The library calls
// the program through an ofsdp_host.
//
// PluginLibrary closes the library when the last user is gone. Input errors name the file: it
// cannot be opened, is for another kind of machine, has no entry, was built against a newer header,
// or is incomplete.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"
#include "plugins/loading/call.h"

namespace ofsdp::plugins {

// The table of functions that libraries get.
ofsdp_host plugin_host();

class PluginLibrary {
 public:
  static Result<std::shared_ptr<const PluginLibrary>> open(const std::string& path);
  ~PluginLibrary();
  PluginLibrary(const PluginLibrary&) = delete;

  const std::string& path() const { return path_; }
  const ofsdp_host* host() const { return &host_; }
  const ofsdp_plugin& description() const { return plugin_; }

 private:
  PluginLibrary() = default;
  Status load(const std::string& path);
  Status describe();

  std::string path_;
  void* handle_ = nullptr;
  ofsdp_host host_ = {};
  ofsdp_plugin plugin_ = {};
};
using PluginLibraryPtr = std::shared_ptr<const PluginLibrary>;

// Returns the operators that the library describes, checked for completeness. The loader fills in
// `known`.
Result<std::vector<std::shared_ptr<PluginOperator>>> plugin_operators(
    const PluginLibraryPtr& library);
Result<std::vector<ofsdp_optimizer>> plugin_optimizers(const PluginLibrary& library);

// load_plugins finds the libraries that --plugin names, checks them and adds them to the built-in
// operators and optimizers.
//
// A name without a slash is looked for in the folders of OFSDP_PLUGIN_PATH (separated by colons),
// as NAME, NAME.so and libNAME.so, and never in the current folder. Two libraries that claim one
// name are refused; one that claims a built-in operator needs `may_override`, and then its kernels
// come first and the built-in ones stay for what it does not take.
//
// The operators keep their libraries loaded. Input errors name --plugin and the file.

struct LoadedPlugins {
  Registry registry;                     // built-in and theirs
  std::vector<OptimizerDef> optimizers;  // as well; theirs are named "plugin:NAME"
  std::vector<PluginLibraryPtr> libraries;
  std::vector<PluginOperatorPtr> operators;  // theirs alone
};

Result<LoadedPlugins> load_plugins(const std::vector<std::string>& names, bool may_override);

// Returns the file for a name.
Result<std::string> find_plugin(const std::string& name, const std::string& search_path);

}  // namespace ofsdp::plugins
