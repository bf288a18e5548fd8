// A fuzz target: any text as a configuration file (ours, Accelerate's or DeepSpeed's). Corpus:
// tests/fixtures/accelerate and deepspeed.
#include <vector>

#include "runtime/cli/command_line.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/namespaces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ofsdp;
  for (const char* name : {"config.yaml", "config.json"}) {
    const std::string path = fuzzing::file_with(name, fuzzing::text_of(data, size));
    std::vector<std::string> words = {"plan", "model.onnx", "--config", path};
    const auto parsed = parse_command(words, std::nullopt);
    if (!parsed.ok()) fuzzing::check_message(parsed.error().message());
  }
  return 0;
}
