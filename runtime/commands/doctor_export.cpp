// The doctor's findings on what an exporter lost, each with the line that keeps it.
#include <algorithm>

#include "importer/edit/export_losses.h"
#include "kernels/base/text.h"
#include "runtime/commands/commands.h"

namespace ofsdp::runtime {
namespace {

// Returns the line that keeps something, and PyTorch's own way.
std::string keeps(const char* what, const char* otherwise) {
  return format_text(
      "export with onnx_fsdp.export(module, \"model.onnx\", example_inputs), which keeps {}{}{}",
      what, *otherwise == 0 ? "" : "; or torch.onnx.export ", otherwise);
}

std::string counted(const std::vector<std::string>& names, const char* noun) {
  return format_text("{} ({})", plural(static_cast<int64_t>(names.size()), noun),
                     some_names(names));
}

std::string axes_text(const std::vector<FixedAxis>& axes) {
  std::vector<std::string> texts;
  for (const FixedAxis& axis : axes) {
    texts.push_back(format_text("'{}' ({})", escaped(axis.input), axis.size));
  }
  return joined(texts, ", ");
}

void add_names(const std::vector<std::string>& renamed, Findings& findings) {
  if (renamed.empty()) return;
  const bool traced = std::ranges::any_of(
      renamed, [](const std::string& name) { return name.starts_with("onnx::"); });
  findings.add(
      format_text("lost names: {} named by the exporter, and export --format safetensors does not "
                  "load into the module",
                  counted(renamed, "weight")),
      keeps("them", traced ? "with do_constant_folding=False" : "with optimize=False"));
}

void add_training_form(const ExportLosses& losses, Findings& findings) {
  if (!losses.folded.empty()) {
    findings.add(format_text("folded batch normalization: {} with one inside, which no longer "
                             "trains",
                             counted(losses.folded, "convolution")),
                 keeps("it", "of module.train()"));
  }
  if (losses.undropped) {
    findings.add(
        "no dropout: the graph has none, as after module.eval(), so training differs from the "
        "module's if that has dropout",
        keeps("it", "of module.train()"));
  }
}

void add_ties(const ExportLosses& losses, Findings& findings) {
  for (const auto& [table, copy] : losses.untied) {
    findings.add(format_text("untied weights: '{}' has the values of '{}', and training moves "
                             "them apart",
                             escaped(copy), escaped(table)),
                 keeps("them one", ""));
  }
}

void add_axes(const ExportLosses& losses, bool free_batch, Findings& findings) {
  if (!losses.batch.empty() && !free_batch) {
    const bool one = std::ranges::all_of(
        losses.batch, [&](const FixedAxis& axis) { return axis.size == losses.batch[0].size; });
    findings.add(
        format_text(
            "fixed batch: the first axis of {} is fixed, and every batch must have that size",
            axes_text(losses.batch)),
        (one ? "--free-batch takes any; or " : "") +
            keeps("it open", "with dynamic_shapes={NAME: {0: \"batch\"}}"));
  }
  if (!losses.sequences.empty()) {
    findings.add(
        format_text(
            "fixed length: the second axis of {} is fixed, and every row must have that length",
            axes_text(losses.sequences)),
        keeps("it open", "with dynamic_shapes={NAME: {1: \"sequence\"}}"));
  }
}

}  // namespace

Status check_export(const OnnxFile& file, bool free_batch, Findings& findings) {
  OFSDP_ASSIGN_OR_RETURN(const ExportLosses losses, export_losses(file));
  add_names(losses.renamed, findings);
  add_training_form(losses, findings);
  add_ties(losses, findings);
  add_axes(losses, free_batch, findings);
  return {};
}

}  // namespace ofsdp::runtime
