// fsdp-run check-plugin: every operator in a library on the library's samples - shape inference,
// forward, backward against finite differences, writes outside the buffers, results that depend on
// the thread count or differ from run to run - and every optimizer on a shard cut in two ways. Each
// sample runs in a separate process, so a crash is a line in the report.
//
// REQUIRES: no parallel loop has run in the process before. The report lists the library's faults.
#pragma once

#include "kernels/core/kernel.h"
#include "plugins/loading/loader.h"

namespace ofsdp::plugins {

struct PluginReport {
  std::string text;  // a line for each sample and for each fault
  int faults = 0;
};

PluginReport check_plugins(const LoadedPlugins& plugins);

// Writes a plug-in skeleton for operators that a model needs and nobody supplies: a folder with one
// C++ file, a CMakeLists.txt and a sample case. It builds at once; forward and backward are to be
// written, and say so until then.
//
// An input error if the folder exists and is not empty, a fault if it cannot be written.

struct SkeletonOperator {
  std::string domain;
  std::string name;
  size_t inputs = 0;
  size_t outputs = 0;
  Attributes attributes;
};

Status write_skeleton(const std::string& folder, const std::vector<SkeletonOperator>& operators);

}  // namespace ofsdp::plugins
