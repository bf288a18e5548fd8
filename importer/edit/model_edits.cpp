#include "importer/edit/model_edits.h"

#include <nlohmann/json.hpp>

#include "importer/edit/model_editor.h"
#include "importer/edit/replace_head.h"
#include "importer/edit/untie.h"
#include "kernels/base/reject.h"

namespace ofsdp::importer {
namespace {

using Json = nlohmann::json;

// The file as it is written: with its own copies and its new head.
Result<std::shared_ptr<const OnnxFile>> base_of(OnnxFile file, const ModelEdits& edits) {
  auto given = std::make_shared<const OnnxFile>(std::move(file));
  if (edits.untie.empty() && !edits.head) return given;
  OFSDP_ASSIGN_OR_RETURN(ModelEditor editor, ModelEditor::make(given));
  OFSDP_ASSIGN_OR_RETURN(const bool untied, untie(editor, edits.untie));
  if (edits.head) {
    OFSDP_RETURN_IF_ERROR(replace_head(editor, *edits.head, edits.prediction, edits.seed));
  } else if (!untied) {
    return given;
  }
  OFSDP_ASSIGN_OR_RETURN(OnnxFile edited, editor.finish());
  return std::make_shared<const OnnxFile>(std::move(edited));
}

}  // namespace

Result<EditedModel> edit_model(OnnxFile file, const ModelEdits& edits) {
  EditedModel model;
  OFSDP_ASSIGN_OR_RETURN(model.base, base_of(std::move(file), edits));
  OFSDP_ASSIGN_OR_RETURN(ModelEditor editor, ModelEditor::make(model.base));
  if (!edits.adapters.patterns.empty()) {
    OFSDP_ASSIGN_OR_RETURN(model.adapters, add_adapters(editor, edits.adapters));
  }
  OFSDP_ASSIGN_OR_RETURN(model.file, editor.finish());
  return model;
}

Result<std::string> merged_copies_warning(const OnnxFile& file) {
  OFSDP_ASSIGN_OR_RETURN(const auto merged, find_merged(file));
  if (merged.empty()) return std::string();
  std::vector<std::string> names;
  for (const MergedCopy& copy : merged) {
    names.push_back(format_text("'{}' ({} readers)", copy.name, copy.readers));
  }
  return format_text(
      "{}: several modules share what an exporter may have merged since the values were equal: {} "
      "(--untie auto gives each its own)",
      file.path(), joined(names, ", "));
}

std::string text_of(const ModelEdits& edits) {
  if (!edits.any()) return "";
  Json json = {{"untie", edits.untie}, {"prediction", edits.prediction}, {"seed", edits.seed}};
  json["head"] = edits.head ? Json(*edits.head) : Json();
  const AdapterSpec& spec = edits.adapters;
  json["lora"] = {{"patterns", spec.patterns},
                  {"rank", spec.rank},
                  {"alpha", spec.alpha},
                  {"dropout", spec.dropout}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<ModelEdits> edits_from(const std::string& text) {
  ModelEdits edits;
  if (text.empty()) return edits;
  try {
    const Json json = Json::parse(text);
    json.at("untie").get_to(edits.untie);
    json.at("prediction").get_to(edits.prediction);
    json.at("seed").get_to(edits.seed);
    if (!json.at("head").is_null()) edits.head = json.at("head").get<int64_t>();
    const Json& lora = json.at("lora");
    lora.at("patterns").get_to(edits.adapters.patterns);
    lora.at("rank").get_to(edits.adapters.rank);
    lora.at("alpha").get_to(edits.adapters.alpha);
    lora.at("dropout").get_to(edits.adapters.dropout);
  } catch (const std::exception& error) {
    return input_error("expected edits of a model, found: {}", error.what());
  }
  const bool fits = edits.adapters.rank > 0 && edits.head.value_or(1) > 0;
  if (!fits) return input_error("expected edits of a model with a rank and a head above 0");
  edits.adapters.seed = edits.seed;
  return edits;
}

}  // namespace ofsdp::importer
