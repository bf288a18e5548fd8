// A plug-in's shared library, opened and checked: version, completeness, names. The library calls
// the program through an ofsdp_host.
//
// Ownership: PluginLibrary closes the library when the last user of it is gone. Threads: one; the
// host's functions as ofsdp_plugin.h says. Errors: kInput that names the file: not to be opened,
// for another kind of machine, without the entry, built against a newer header, incomplete.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "plugins/loading/call.h"

namespace ofsdp::plugins {

// The table that libraries get.
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

// The operators that it describes, checked for completeness. `known` is filled in by the loader.
Result<std::vector<std::shared_ptr<PluginOperator>>> plugin_operators(
    const PluginLibraryPtr& library);
Result<std::vector<ofsdp_optimizer>> plugin_optimizers(const PluginLibrary& library);

}  // namespace ofsdp::plugins
