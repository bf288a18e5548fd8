#include "importer/file/branch_weights.h"

#include <functional>
#include <set>

#include "kernels/base/budgets.h"

namespace ofsdp::importer {
namespace {

bool is_node(const WireField& field) {
  return field.number == graph_field::kNode && field.type == WireType::kBytes;
}

std::string operator_of(const WireField& node) {
  const std::string domain = string_field(node.bytes, node_field::kDomain);
  return domain.empty() || domain == "ai.onnx" ? string_field(node.bytes, node_field::kOperator)
                                               : "";
}

using Visit = std::function<Status(const WireField& field)>;

Status each_field(const WireField& message, const Visit& visit) {
  for (WireReader reader(message.bytes, message.body); !reader.done();) {
    OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
    if (field.type == WireType::kBytes) OFSDP_RETURN_IF_ERROR(visit(field));
  }
  return ok_status();
}

// Calls `visit` with each graph in the node's attributes, and the attribute's name.
Status each_graph(const WireField& node,
                  const std::function<Status(const WireField&, const std::string&)>& visit) {
  return each_field(node, [&](const WireField& attribute) -> Status {
    if (attribute.number != node_field::kAttribute) return ok_status();
    const std::string name = string_field(attribute.bytes, attribute_field::kName);
    return each_field(attribute, [&](const WireField& graph) -> Status {
      const bool inner =
          graph.number == attribute_field::kGraph || graph.number == attribute_field::kGraphs;
      return inner ? visit(graph, name) : ok_status();
    });
  });
}

bool is_external(const WireField& tensor) {
  const Result<TensorRecord> record = parse_tensor(tensor.bytes, tensor.body);
  return record.ok() && record->external.has_value();
}

bool is_tensor(const WireField& part) { return part.number == attribute_field::kTensor; }

// Calls `visit` with each tensor in the node's attributes and in their graphs.
Status each_tensor(const WireField& node, const Visit& visit, int depth) {
  OFSDP_REJECT_IF(depth > kMaxDepth, "expected subgraphs at most {} deep", kMaxDepth);
  OFSDP_RETURN_IF_ERROR(each_field(node, [&](const WireField& attribute) -> Status {
    if (attribute.number != node_field::kAttribute) return ok_status();
    return each_field(attribute, [&](const WireField& part) {
      return is_tensor(part) ? visit(part) : ok_status();
    });
  }));
  return each_graph(node, [&](const WireField& graph, const std::string&) {
    return each_field(graph, [&](const WireField& field) -> Status {
      if (field.number == graph_field::kInitializer) return visit(field);
      return is_node(field) ? each_tensor(field, visit, depth + 1) : ok_status();
    });
  });
}

class BranchScan {
 public:
  Result<std::vector<BranchTensor>> run(const WireField& graph) {
    OFSDP_RETURN_IF_ERROR(count_names(graph, 0));
    OFSDP_RETURN_IF_ERROR(each_field(graph, [&](const WireField& field) {
      return is_node(field) ? take_branches(field, "", 0) : ok_status();
    }));
    for (BranchTensor& one : found_) one.outer = outer_name(one);
    return std::move(found_);
  }

 private:
  // Counts how often the file defines a name.
  Status count_names(const WireField& graph, int depth) {
    OFSDP_REJECT_IF(depth > kMaxDepth, "expected subgraphs at most {} deep", kMaxDepth);
    return each_field(graph, [&](const WireField& field) -> Status {
      if (field.number == graph_field::kInput) {
        ++defined_[string_field(field.bytes, value_info_field::kName)];
      } else if (field.number == graph_field::kInitializer) {
        ++defined_[string_field(field.bytes, tensor_field::kName)];
      }
      if (!is_node(field)) return ok_status();
      OFSDP_RETURN_IF_ERROR(each_field(field, [&](const WireField& part) -> Status {
        if (part.number == node_field::kOutput) ++defined_[std::string(as_text(part.bytes))];
        return ok_status();
      }));
      return each_graph(field, [&](const WireField& inner, const std::string&) {
        return count_names(inner, depth + 1);
      });
    });
  }

  // `place`: of the graph that holds the node.
  Status take_branches(const WireField& node, const std::string& place, int depth) {
    if (operator_of(node) != "If") return ok_status();
    std::string name = string_field(node.bytes, node_field::kName);
    if (name.empty()) name = string_field(node.bytes, node_field::kOutput);
    return each_graph(node, [&](const WireField& branch, const std::string& attribute) {
      return take_branch(branch, place + name + "/" + attribute + "/", depth + 1);
    });
  }

  Status take_branch(const WireField& branch, const std::string& place, int depth) {
    std::set<std::string> outputs;
    OFSDP_RETURN_IF_ERROR(each_field(branch, [&](const WireField& field) -> Status {
      if (field.number == graph_field::kOutput) {
        outputs.insert(string_field(field.bytes, value_info_field::kName));
      }
      return ok_status();
    }));
    return each_field(branch, [&](const WireField& field) -> Status {
      if (field.number == graph_field::kInitializer) {
        add(field, field, string_field(field.bytes, tensor_field::kName), place, outputs);
      }
      if (!is_node(field)) return ok_status();
      if (operator_of(field) == "Constant") return take_constant(field, place, outputs);
      return take_branches(field, place, depth);
    });
  }

  Status take_constant(const WireField& node, const std::string& place,
                       const std::set<std::string>& outputs) {
    return each_field(node, [&](const WireField& attribute) -> Status {
      if (attribute.number != node_field::kAttribute) return ok_status();
      return each_field(attribute, [&](const WireField& tensor) -> Status {
        if (tensor.number == attribute_field::kTensor) {
          add(node, tensor, string_field(node.bytes, node_field::kOutput), place, outputs);
        }
        return ok_status();
      });
    });
  }

  // Leaves out nodes that it cannot read: ONNX's checker reports them.
  void add(const WireField& field, const WireField& message, const std::string& name,
           const std::string& place, const std::set<std::string>& outputs) {
    Result<TensorRecord> tensor = parse_tensor(message.bytes, message.body);
    if (!tensor.ok() || name.empty() || outputs.contains(name)) return;
    const bool dense = tensor->encoding != Initializer::Encoding::kList;
    if (!dense || !is_floating(tensor->dtype) || tensor->dims.empty()) return;
    tensor->name = name;
    found_.push_back({field, message, *std::move(tensor), place});
  }

  // `outer` has the tensor's place.
  std::string outer_name(const BranchTensor& one) {
    if (defined_[one.tensor.name] == 1) return one.tensor.name;
    std::string name = one.outer + one.tensor.name;
    for (int i = 1; defined_[name]++ > 0; ++i) {
      name = format_text("{}{}.{}", one.outer, one.tensor.name, i);
    }
    return name;
  }

  std::map<std::string, int> defined_;
  std::vector<BranchTensor> found_;
};

class Remover {
 public:
  Remover(const std::map<int64_t, const BranchTensor*>& lifted, const Embed& embed)
      : lifted_(lifted), embed_(embed) {}

  using Names = std::map<std::string, std::string>;  // in a branch -> in the main graph

  // Returns the body of a node that reads `names` where its graph has them.
  Result<std::string> node(const WireField& node, const Names& names) const {
    return copied(node, [&](const WireField& field) -> Result<std::string> {
      if (field.number == node_field::kInput) return input(field, names);
      if (field.number != node_field::kAttribute) return as_it_is(field);
      return copied(field, [&](const WireField& part) {
        const bool inner =
            part.number == attribute_field::kGraph || part.number == attribute_field::kGraphs;
        if (is_tensor(part)) return tensor(part);
        return inner ? graph(part, names) : as_it_is(part);
      });
    });
  }

 private:
  using Copy = std::function<Result<std::string>(const WireField& field)>;

  static Result<std::string> as_it_is(const WireField& field) {
    return std::string(as_text(field.bytes));
  }

  Result<std::string> tensor(const WireField& field) const {
    return is_external(field) ? embed_(field) : as_it_is(field);
  }

  static Result<std::string> input(const WireField& field, const Names& names) {
    std::string name(as_text(field.bytes));
    const auto found = names.find(name);
    return found == names.end() ? name : found->second;
  }

  // Copies a message's fields; `copy` returns the body of one of bytes.
  static Result<std::string> copied(const WireField& message, const Copy& copy) {
    std::string body;
    for (WireReader reader(message.bytes, message.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (field.type != WireType::kBytes) {
        body += as_text(field.whole);
        continue;
      }
      OFSDP_ASSIGN_OR_RETURN(const std::string part, copy(field));
      append_bytes(body, field.number, part);
    }
    return body;
  }

  Result<std::string> graph(const WireField& graph, Names names) const {
    OFSDP_RETURN_IF_ERROR(
        each_field(graph, [&](const WireField& field) { return enter(field, names); }));
    std::string body;
    for (WireReader reader(graph.bytes, graph.body); !reader.done();) {
      OFSDP_ASSIGN_OR_RETURN(const WireField field, reader.next());
      if (lifted_.contains(field.begin)) continue;
      if (is_node(field)) {
        OFSDP_ASSIGN_OR_RETURN(const std::string inner, node(field, names));
        append_bytes(body, graph_field::kNode, inner);
      } else if (field.number == graph_field::kInitializer) {
        OFSDP_ASSIGN_OR_RETURN(const std::string inner, tensor(field));
        append_bytes(body, graph_field::kInitializer, inner);
      } else {
        body += as_text(field.whole);
      }
    }
    return body;
  }

  // Enters the names that a graph's field defines: they hide equal names of outer graphs.
  Status enter(const WireField& field, Names& names) const {
    if (const auto found = lifted_.find(field.begin); found != lifted_.end()) {
      names[found->second->tensor.name] = found->second->outer;
    } else if (field.number == graph_field::kInput) {
      names.erase(string_field(field.bytes, value_info_field::kName));
    } else if (field.number == graph_field::kInitializer) {
      names.erase(string_field(field.bytes, tensor_field::kName));
    } else if (is_node(field)) {
      return each_field(field, [&](const WireField& part) -> Status {
        if (part.number == node_field::kOutput) names.erase(std::string(as_text(part.bytes)));
        return ok_status();
      });
    }
    return ok_status();
  }

  const std::map<int64_t, const BranchTensor*>& lifted_;
  const Embed& embed_;
};

}  // namespace

Result<std::vector<BranchTensor>> branch_tensors(const WireField& graph) {
  return BranchScan().run(graph);
}

bool has_external(const WireField& node) {
  bool found = false;
  const Status walked = each_tensor(
      node,
      [&](const WireField& tensor) {
        found = found || is_external(tensor);
        return ok_status();
      },
      0);
  return walked.ok() && found;  // ONNX's checker reports a broken node
}

Result<std::string> without_tensors(const WireField& node,
                                    const std::map<int64_t, const BranchTensor*>& lifted,
                                    const Embed& embed) {
  return Remover(lifted, embed).node(node, {});
}

}  // namespace ofsdp::importer
