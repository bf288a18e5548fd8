// The options that change the model before it is trained.
#include "runtime/cli/options/option_table.h"

namespace ofsdp::cli {

std::vector<OptionEntry> edit_entries() {
  using namespace entries;
  constexpr Range kBelowOne = {"a number of at least 0 and below 1",
                               [](double x) { return x >= 0 && x < 1; }};
  return {
      repeated("",
               {"lora", "all, NAME or glob; repeated",
                "weights that get an adapter; all else is frozen but for --train"},
               OFSDP_FIELD(edit.lora)),
      integer({"lora-rank", "8", "rows of an adapter's A"}, 1, OFSDP_FIELD(edit.lora_rank)),
      number({"lora-alpha", "16", "an adapter adds alpha/rank * B A to its weight"}, kAboveZero,
             OFSDP_FIELD(edit.lora_alpha)),
      number({"lora-dropout", "0", "of what an adapter multiplies with A"}, kBelowOne,
             OFSDP_FIELD(edit.lora_dropout)),
      path(
          {"lora-from", "none, FILE.safetensors or FILE.onnx_adapter", "the adapter to start from"},
          OFSDP_FIELD(edit.lora_from)),
      trusted(path({"adapter", "none, FILE.safetensors or FILE.onnx_adapter",
                    "the trained adapter, written at the end"},
                   OFSDP_FIELD(edit.adapter))),
      integer_or("none", {"replace-head", "none, N", "the last product gets N new outputs"}, 1,
                 OFSDP_FIELD(edit.replace_head)),
      repeated("",
               {"untie", "auto, NAME or glob; repeated",
                "every reader of an initializer gets its own copy; auto: those that were merged"},
               OFSDP_FIELD(edit.untie)),
  };
}

}  // namespace ofsdp::cli
