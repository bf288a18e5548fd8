// The program fsdp-run as a function: command line, ranks, run, exit status.
//
// It starts itself again once, to set what libgomp reads before main, and takes the process for its
// own: signals, limits, OpenMP's threads. The library's onnx_fsdp_command calls it.
//
// Threads: the main one. Errors: printed, and the exit status: 0, 1 or 2.
#pragma once

namespace ofsdp::cli {

// `argv` as main got it, null-terminated; `version` is what --version prints.
int run_program(int argc, char** argv, const char* version);

}  // namespace ofsdp::cli
