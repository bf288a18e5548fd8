#include <algorithm>
#include <set>

#include "importer/graph/graph.h"
#include "importer/passes/loss.h"
#include "importer/passes/trained_set.h"
#include "importer/proto/onnx_protos.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"

namespace ofsdp::importer {
namespace {

std::string value_names(const Graph& graph, const std::vector<ValueId>& ids) {
  std::vector<std::string> names;
  for (const ValueId id : ids) names.push_back(graph.value(id).name);
  return joined(names, ", ");
}

ValueId value_named(const Graph& graph, const std::vector<ValueId>& ids, const std::string& name) {
  const auto found = std::ranges::find(ids, name, [&](ValueId id) { return graph.value(id).name; });
  return found == ids.end() ? 0 : *found;
}

// Drops the outputs that the student lacks, and the nodes and inputs that only they need.
Graph needed_part(const Graph& imported, const Graph& student) {
  Graph graph = imported;
  std::erase_if(graph.outputs, [&](ValueId id) {
    return value_named(student, student.outputs, graph.value(id).name) == 0;
  });
  prune(graph, graph.outputs);
  const GraphUses uses(graph);
  std::erase_if(graph.inputs, [&](ValueId id) {
    return uses.readers(id).empty() && std::ranges::count(graph.outputs, id) == 0;
  });
  return graph;
}

// Returns a prefix with which no value or initializer in the student begins.
std::string free_prefix(const Graph& student) {
  const auto taken = [&](const std::string& prefix) {
    return std::ranges::any_of(student.values,
                               [&](const Value& v) { return v.name.starts_with(prefix); }) ||
           std::ranges::any_of(student.parameters, [&](const Parameter& p) {
             return p.name.starts_with(prefix) || (p.module + ".").starts_with(prefix);
           });
  };
  std::string prefix = "teacher.";
  for (int n = 2; taken(prefix); ++n) prefix = format_text("teacher{}.", n);
  return prefix;
}

// Fixes an axis if either model fixes it.
Status merge_axes(Value& student, const Value& teacher, const std::string& file) {
  const std::string what = format_text("--teacher {}: input '{}'", file, teacher.name);
  OFSDP_REJECT_IF(student.declared.size() != teacher.declared.size(),
                  "{}: expected {} axes, as the trained model has, found {}", what,
                  student.declared.size(), teacher.declared.size());
  for (size_t i = 0; i < student.declared.size(); ++i) {
    const int64_t mine = student.declared[i].size, other = teacher.declared[i].size;
    OFSDP_REJECT_IF(mine >= 0 && other >= 0 && mine != other,
                    "{}: axis {}: expected {}, as the trained model has, found {}", what, i, mine,
                    other);
    if (mine < 0 && other >= 0) student.declared[i].size = other;
  }
  return {};
}

class TeacherJoiner {
 public:
  TeacherJoiner(const Graph& student, const Graph& teacher, const Teacher& of)
      : graph_(student), teacher_(teacher), of_(of), same_(teacher.values.size(), 0) {}

  Result<Graph> run(std::map<std::string, ValueId>& taught) {
    std::vector<Node> own = std::move(graph_.nodes);
    graph_.nodes.clear();
    const size_t first = graph_.parameters.size() - teacher_.parameters.size();
    for (size_t i = 0; i < teacher_.parameters.size(); ++i) {
      at(teacher_.parameters[i].value) = graph_.parameters[first + i].value;
    }
    for (const ValueId id : teacher_.inputs) {
      OFSDP_ASSIGN_OR_RETURN(at(id), input(id));
    }
    for (const Node& node : teacher_.nodes) {
      OFSDP_RETURN_IF_ERROR(GraphEditor(graph_).place(renamed(node)));
    }
    graph_.nodes.insert(graph_.nodes.end(), std::make_move_iterator(own.begin()),
                        std::make_move_iterator(own.end()));
    for (const ValueId id : teacher_.outputs) taught[teacher_.value(id).name] = value(id);
    return std::move(graph_);
  }

 private:
  ValueId& at(ValueId id) { return same_[static_cast<size_t>(id)]; }

  ValueId value(ValueId id) {
    if (id == 0 || at(id) != 0) return id == 0 ? 0 : at(id);
    Value copy = teacher_.value(id);
    copy.name = of_.prefix + copy.name;
    return at(id) = GraphEditor(graph_).add_value(std::move(copy));
  }

  // Each model may read a column in another type.
  Result<ValueId> input(ValueId id) {
    const Value& wanted = teacher_.value(id);
    const ValueId found = value_named(graph_, graph_.inputs, wanted.name);
    if (graph_.value(found).desc.dtype == wanted.desc.dtype) return found;
    const std::string name = of_.prefix + wanted.name;
    const ValueId cast = GraphEditor(graph_).add_value({name, ValueKind::kActivation, wanted.desc});
    const Attributes to{{"to", onnx_number(wanted.desc.dtype)}};
    OFSDP_RETURN_IF_ERROR(
        GraphEditor(graph_).place({&graph_.registry->get("Cast"), name, to, {found}, {cast}}));
    return cast;
  }

  Node renamed(Node node) {
    node.name = of_.prefix + node.name;
    for (ValueId& id : node.inputs) id = value(id);
    for (ValueId& id : node.outputs) id = value(id);
    return node;
  }

  Graph graph_;
  const Graph& teacher_;
  const Teacher& of_;
  std::vector<ValueId> same_;  // by teacher value: the value in the result
};

// Returns the divergence of an output from the teacher's. REQUIRES: equal shapes of two axes or
// more.
Result<ValueId> add_divergence(Graph& graph, const LossSpec& spec, double temperature,
                               ValueId student, ValueId teacher) {
  GraphEditor editor(graph);
  OFSDP_ASSIGN_OR_RETURN(const ValueId rows,
                         editor.add1("ofsdp.CollapseLeading", "distill.student", {student}));
  OFSDP_ASSIGN_OR_RETURN(const ValueId taught,
                         editor.add1("ofsdp.CollapseLeading", "distill.teacher", {teacher}));
  std::vector<ValueId> inputs{rows, taught};
  Attributes attributes{{"temperature", static_cast<float>(temperature)}};
  if (loss_traits(spec.kind).labels == LabelKind::kClasses) {
    const ValueId column = value_named(graph, graph.inputs, spec.labels);
    OFSDP_ASSIGN_OR_RETURN(const ValueId labels,
                           reordered(graph, column, spec.batch, 1, spec.outer));
    OFSDP_ASSIGN_OR_RETURN(const ValueId flat,
                           editor.add1("ofsdp.CollapseAll", "distill.labels", {labels}));
    inputs.push_back(flat);
    attributes.set("ignore_index", spec.ignore_index);
  }
  return editor.add1("ofsdp.DistillationLoss", "distill", inputs, attributes);
}

Result<std::string> identity_of(const OnnxFile& teacher) {
  std::string text = graph_hash(teacher);
  for (const Initializer& weight : teacher.initializers()) {
    if (!is_floating(weight.dtype)) continue;
    const int64_t numel = weight.shape.numel();
    std::vector<float> some(static_cast<size_t>(std::min<int64_t>(numel, 64)));
    const auto count = static_cast<int64_t>(some.size());
    for (const int64_t first : {int64_t{0}, numel - count}) {
      OFSDP_RETURN_IF_ERROR(teacher.read(weight, first, some));
      text.append(reinterpret_cast<const char*>(some.data()), some.size() * sizeof(float));
    }
  }
  return format_text("{:016x}", Fnv1a().add(text).value());
}

}  // namespace

Result<Teacher> make_teacher(OnnxFile file, const Graph& imported, const Graph& student,
                             const Distillation& how) {
  Graph symbolic = choose_given(needed_part(imported, student), {});
  OFSDP_REJECT_IF(symbolic.outputs.empty(),
                  "--teacher {}: expected an output that the trained model has too ({}), "
                  "found {}",
                  file.path(), value_names(student, student.outputs),
                  value_names(imported, imported.outputs));
  OFSDP_ASSIGN_OR_RETURN(std::string identity, identity_of(file));
  return Teacher{std::move(file), std::move(symbolic), how, free_prefix(student),
                 std::move(identity)};
}

Result<Graph> with_teacher(const Graph& student, const Teacher& teacher) {
  Graph graph = student;
  const Graph& from = teacher.symbolic;
  for (Parameter p : from.parameters) {
    Value value = from.value(p.value);
    value.name = teacher.prefix + value.name;
    p.value = GraphEditor(graph).add_value(std::move(value));
    p.module = p.module.empty() ? "" : teacher.prefix + p.module;
    p.name = teacher.prefix + p.name;
    p.reason = "of the teacher";
    p.of_teacher = true;
    graph.parameters.push_back(std::move(p));
  }
  for (const auto& [path, type] : from.classes) graph.classes[teacher.prefix + path] = type;
  for (const ValueId id : from.inputs) {
    const Value& input = from.value(id);
    const ValueId same = value_named(graph, graph.inputs, input.name);
    if (same != 0) {
      OFSDP_RETURN_IF_ERROR(merge_axes(graph.value(same), input, teacher.file.path()));
    } else {
      graph.inputs.push_back(GraphEditor(graph).add_value(input));
    }
  }
  return graph;
}

Result<Graph> join_teacher(const Graph& student, const Graph& teacher, const Teacher& of,
                           std::map<std::string, ValueId>& taught) {
  return TeacherJoiner(student, teacher, of).run(taught);
}

Status add_distillation(Graph& graph, std::span<const LossSpec> specs, const Teacher& teacher,
                        const std::map<std::string, ValueId>& taught) {
  bool any = false;
  for (size_t i = 0; i < specs.size(); ++i) {
    const LossSpec& spec = specs[i];
    const auto found = taught.find(spec.taught.empty() ? spec.prediction : spec.taught);
    if (specs[i].kind == LossKind::kOutput || found == taught.end()) continue;
    if (!is_floating(graph.value(found->second).desc.dtype)) continue;
    OFSDP_ASSIGN_OR_RETURN(const ValueId student,
                           in_float32(graph, find_operand(graph, spec), "student.scores"));
    OFSDP_ASSIGN_OR_RETURN(const ValueId given, in_float32(graph, found->second, "teacher.scores"));
    const Shape& expected = graph.value(student).desc.shape;
    const Shape& shape = graph.value(found->second).desc.shape;
    OFSDP_REJECT_IF(shape != expected,
                    "--teacher {}: output '{}': expected {}, as the trained model gives, found {}",
                    teacher.file.path(), found->first, expected.text(), shape.text());
    any = true;
    graph.terms[i].factor *= 1 - teacher.how.weight;
    if (expected.rank() < 2) continue;  // one class: the divergence is 0
    const double t = teacher.how.temperature;
    OFSDP_ASSIGN_OR_RETURN(const ValueId divergence,
                           add_divergence(graph, specs[i], t, student, given));
    graph.terms.push_back(
        {divergence, 0, specs[i].weight * teacher.how.weight * t * t, static_cast<int>(i)});
  }
  if (any) return {};
  std::vector<std::string> wanted, has;
  for (const LossSpec& spec : specs) {
    if (spec.kind != LossKind::kOutput) wanted.push_back(spec.prediction);
  }
  for (const auto& [name, id] : taught) has.push_back(name);
  return input_error("--teacher {}: expected an output that a --loss names ({}), found {}",
                     teacher.file.path(), wanted.empty() ? "none does" : joined(wanted, ", "),
                     joined(has, ", "));
}

}  // namespace ofsdp::importer
