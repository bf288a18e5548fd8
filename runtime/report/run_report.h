// RunReport: the page about a run, report.html: one HTML file that needs no network and can be read
// without scripts. It has curves of loss, evaluation, learning rate, gradient norm, time and
// memory, and the run's configuration, command, warnings and files.
//
// Curves come from RunCurves or from a metrics file. Texts may have any characters; the page
// escapes them. Written when a run ends, so that a step costs nothing.
//
// Errors: kInput or kFault with the path.
#pragma once

#include <string>
#include <vector>

#include "kernels/base/status.h"
#include "runtime/log/run_curves.h"
#include "runtime/log/screen.h"

namespace ofsdp::runtime {

// Empty members are left out.
struct RunReport {
  std::string title = {};
  std::string model = {};
  std::string state = {};          // "stopped at update 20 of 100"; empty: as the last row says
  std::string command = {};        // as typed
  std::string configuration = {};  // YAML
  std::string versions = {};       // a line
  std::vector<std::string> warnings = {};
  std::vector<WrittenFile> files = {};
};

// Returns the command of this process, quoted for a shell.
std::string own_command();

std::string run_page(const RunReport& report, const RunCurves& curves);

Status write_run_report(const std::string& path, const RunReport& report, const RunCurves& curves);

// Writes FOLDER/report.html from the folder's files: metrics.jsonl, config.yaml, command.txt, and
// log.txt for warnings and the state. A file that is missing is left out, except the metrics
// (`metrics`: another file for them; empty: the folder's). `known`: members that need not be found.
Status write_run_report(const std::string& folder, RunReport known = {},
                        const std::string& metrics = "");

}  // namespace ofsdp::runtime
