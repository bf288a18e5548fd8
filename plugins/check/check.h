// fsdp-run check-plugin: every operator of a library on its own samples - shape inference, forward,
// backward against finite differences, writes outside of its buffers, results that depend on the
// number of threads or differ from run to run - and every optimizer on two cuts of a shard. Each
// sample runs in a process of its own, so a crash is a line of the report.
//
// Ownership: values. Threads: one; no parallel loop may have run in the process before. Errors:
// kInput when the library cannot be loaded; what it does wrong is in the report.
#pragma once

#include "plugins/loading/loader.h"

namespace ofsdp::plugins {

struct PluginReport {
  std::string text;  // a line for each sample and for each fault
  int faults = 0;
};

PluginReport check_plugins(const LoadedPlugins& plugins);

}  // namespace ofsdp::plugins
