// The changes that a run makes in a model before it trains it: copies untied, a new head, adapters.
//
//   edits     order      what `--output` writes
//   untie     first      the edited file
//   head      second     the edited file
//   adapters  last       the file before this edit, with the adapters merged into its weights
//
// A checkpoint keeps the edits as text, so that `export` can make them again. Threads: any. Errors:
// kInput naming the flag.
#pragma once

#include <memory>
#include <optional>

#include "importer/edit/adapters.h"
#include "importer/file/onnx_file.h"

namespace ofsdp::importer {

struct ModelEdits {
  std::vector<std::string> untie;
  std::optional<int64_t> head;  // outputs of the new one
  std::string prediction;       // that the head is for; empty: the first
  AdapterSpec adapters;         // without patterns: none
  uint64_t seed = 0;

  bool any() const { return !untie.empty() || head || !adapters.patterns.empty(); }
};

struct EditedModel {
  std::shared_ptr<const OnnxFile> base;  // what a trained file is written from
  OnnxFile file;                         // what is trained
  std::vector<Adapter> adapters;
};

// Also where nothing is to be edited.
Result<EditedModel> edit_model(OnnxFile file, const ModelEdits& edits);

// A warning when the file has copies that an exporter has merged; else "".
Result<std::string> merged_copies_warning(const OnnxFile& file);

// The edits as JSON without --lora-from, whose values are in a checkpoint anyway; "" for none.
std::string text_of(const ModelEdits& edits);
Result<ModelEdits> edits_from(const std::string& text);

}  // namespace ofsdp::importer
