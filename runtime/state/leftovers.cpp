#include "runtime/state/leftovers.h"

#include "fsdp/checkpoint/checkpoint_store.h"
#include "importer/write/output_files.h"

namespace ofsdp::runtime {

// Opening the places again removes what is left there.
void tidy_after_failure(const std::string& output, const std::string& checkpoint_dir) {
  if (!output.empty()) (void)check_output_path(output);
  if (is_folder(checkpoint_dir)) (void)CheckpointStore::open(checkpoint_dir, {});
}

}  // namespace ofsdp::runtime
