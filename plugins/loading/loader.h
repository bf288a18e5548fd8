// load_plugins: what --plugin names, found, checked and added to the built-in operators and
// optimizers.
//
// A name without a slash is looked for in the folders of OFSDP_PLUGIN_PATH (separated by colons),
// as NAME, NAME.so and libNAME.so, and never in the current folder. Two libraries that claim one
// name are refused; one that claims a built-in operator needs `may_override`, and then its kernels
// come first and the built-in ones stay for what it does not take.
//
// Ownership: the operators keep their libraries loaded. Threads: one. Errors: kInput that names
// --plugin and the file.
#pragma once

#include "kernels/core/optimizer.h"
#include "kernels/core/registry.h"
#include "plugins/loading/library.h"

namespace ofsdp::plugins {

struct LoadedPlugins {
  Registry registry;                     // built-in and theirs
  std::vector<OptimizerDef> optimizers;  // as well; theirs are named "plugin:NAME"
  std::vector<PluginLibraryPtr> libraries;
  std::vector<PluginOperatorPtr> operators;  // theirs alone
};

Result<LoadedPlugins> load_plugins(const std::vector<std::string>& names, bool may_override);

// The file that a name means.
Result<std::string> find_plugin(const std::string& name, const std::string& search_path);

}  // namespace ofsdp::plugins
