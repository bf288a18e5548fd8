// forward_sample MODEL.onnx FOLDER: one forward pass of the file on a made-up batch, with training
// switches off. Writes inputs and outputs as raw bytes into FOLDER and a line for each to stdout:
//
//   input NAME DTYPE [SHAPE] FILE
//   output NAME float32 COUNT FILE
#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "kernels/core/op_def.h"
#include "runtime/commands/commands.h"
#include "tests/support/namespaces.h"

namespace ofsdp {
namespace {

Status run(const std::string& path, const std::string& folder) {
  OFSDP_ASSIGN_OR_RETURN(const OnnxFile file, OnnxFile::open(path));
  OFSDP_ASSIGN_OR_RETURN(const ForwardSample sample, sample_forward(file, make_registry()));
  int number = 0;
  for (const auto& input : sample.inputs) {
    const std::string name = format_text("{}/{}.bin", folder, number++);
    std::ofstream(name, std::ios::binary)
        .write(reinterpret_cast<const char*>(input.bytes.data()),
               static_cast<std::streamsize>(input.bytes.size()));
    fmt::print("input {} {} {}\n", input.name, input.desc.text(), name);
  }
  for (const auto& [output, values] : sample.outputs) {
    const std::string name = format_text("{}/{}.bin", folder, number++);
    std::ofstream(name, std::ios::binary)
        .write(reinterpret_cast<const char*>(values.data()),
               static_cast<std::streamsize>(values.size() * sizeof(float)));
    fmt::print("output {} float32 {} {}\n", output, values.size(), name);
  }
  return ok_status();
}

}  // namespace
}  // namespace ofsdp

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const ofsdp::Status status = ofsdp::run(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
