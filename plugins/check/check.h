// fsdp-run check-plugin: every operator of a library on its own samples - shape inference, forward,
// backward against finite differences, writes outside its buffers, results that depend on the
// number of threads or differ from run to run - and every optimizer on two cuts of a shard. Each
// sample runs in a process of its own, so a crash is a line of the report.
//
// REQUIRES: no parallel loop has run in the process before. The report lists the
// library's faults.
#pragma once

#include "plugins/loading/loader.h"

namespace ofsdp::plugins {

struct PluginReport {
  std::string text;  // a line for each sample and for each fault
  int faults = 0;
};

PluginReport check_plugins(const LoadedPlugins& plugins);

}  // namespace ofsdp::plugins
