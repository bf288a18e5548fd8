// A fuzz target: any text as the manifest of a checkpoint. An accepted manifest can be written and
// read again. Corpus: manifest.json of checkpoints.
#include "fsdp/checkpoint/manifest.h"

#include "tests/fuzz/fuzz.h"
#include "tests/support/namespaces.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ofsdp;
  const auto manifest = parse_manifest(std::string(fuzzing::text_of(data, size)));
  if (!manifest.ok()) {
    fuzzing::check_message(manifest.error().message());
  } else if (!parse_manifest(to_text(*manifest)).ok()) {
    std::abort();
  }
  return 0;
}
