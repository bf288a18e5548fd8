// The options about what of the model is trained, and whether its file says how.
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

std::vector<OptionEntry> trained_entries() {
  using namespace entries;
  return {
      repeated("", {"freeze", "NAME or glob, repeated", "initializers that stay as they are"},
               OFSDP_FIELD(freeze)),
      repeated("", {"train", "NAME or glob, repeated", "the only initializers that are trained"},
               OFSDP_FIELD(train)),
      toggle({"sync-batch-norm", "off, on",
              "BatchNormalization takes its statistics from the rows of all ranks"},
             OFSDP_FIELD(sync_batch_norm)),
      choice("qat-scales", "scales of quantized values stay, or are trained (LSQ)",
             OFSDP_FIELD(qat_scales)),
      toggle(
          {"training-info", "on, off",
           "follow the training_info of the model, where it has one: its loss and its optimizer"},
          OFSDP_FIELD(training_info)),
      toggle({"initialize", "off, on",
              "start from what the initialization graphs of the training_info give"},
             OFSDP_FIELD(initialize)),
  };
}

}  // namespace ofsdp::cli
