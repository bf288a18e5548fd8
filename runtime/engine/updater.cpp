#include "runtime/engine/updater.h"

#include <algorithm>

namespace ofsdp::runtime {

namespace {

static_assert(kReduceBlock == kUpdateBlock && kReduceBlock % kStateBlock == 0 &&
              kStateBlock % kParamAlignment == 0);

constexpr int64_t kLimbs = ExactSquares::kLimbs;

Status check_states(const UpdatePlan& updates) {
  for (const ParameterUpdate& update : updates.parameters) {
    if (update.states.size() <= static_cast<size_t>(kMaxRowStates)) continue;
    return input_error("--optimizer {}: keeps {} states of a parameter, expected at most {}",
                       updates.groups[static_cast<size_t>(update.group)].optimizer->name,
                       update.states.size(), kMaxRowStates);
  }
  return {};
}

}  // namespace

// Lists the operations of each unit and makes their kernels.
class UpdateLister {
 public:
  explicit UpdateLister(Updater& updater)
      : updater_(updater),
        context_(updater.context_),
        table_(updater.table()),
        updates_(table_.updates()),
        plan_(table_.plan()) {
    std::vector<OptimizerDef> optimizers;
    for (const UpdateGroup& group : updates_.groups) {
      const bool known = std::ranges::any_of(
          optimizers, [&](const OptimizerDef& o) { return o.name == group.optimizer->name; });
      if (!known) optimizers.push_back(*group.optimizer);
    }
    if (context_.device == nullptr) registry_ = update_registry(optimizers);
  }

  Status list_all() {
    for (const Unit& unit : plan_.units) {
      unit_ = &unit;
      list_ = &updater_.units_.emplace_back();
      place_operands();
      OFSDP_RETURN_IF_ERROR(list_advance());
      OFSDP_RETURN_IF_ERROR(list_factors());
      OFSDP_RETURN_IF_ERROR(list_norms());
      OFSDP_RETURN_IF_ERROR(list_apply());
      OFSDP_RETURN_IF_ERROR(list_matrices());
    }
    return {};
  }

 private:
  using Listing = Updater::Listing;

  const std::vector<UpdateRow>& rows() const { return table_.rows(unit_->id); }
  bool on_device() const { return context_.device != nullptr; }
  // If steps follow, they make the copy that nodes read.
  bool copies_at_once() const { return !table_.takes_steps(); }

  void place_operands() {
    const UnitState& state = context_.units[static_cast<size_t>(unit_->id)];
    const Shape shard{state.owned_numel};
    std::vector<TensorView>& operands = list_->operands;
    operands.resize(UpdateOut::kStates + updates_.states.size());
    const auto place = [&](size_t i, void* data, DType dtype, Shape shape) {
      if (data != nullptr) operands[i] = {static_cast<std::byte*>(data), {dtype, shape}};
    };
    const Shape pairs{2 * table_.parameters()};
    place(UpdateOut::kParam, state.owned, DType::kFloat32, shard);
    place(UpdateOut::kCopy, state.rounded, plan_.param_dtype, shard);
    place(UpdateOut::kKept, state.gradient, DType::kFloat32, shard);
    if (table_.matrices() > 0) {
      place(UpdateOut::kMeans, context_.means, DType::kFloat32, Shape{table_.matrices()});
    }
    if (table_.needs_norms()) {
      place(UpdateOut::kSquares, context_.squares, DType::kFloat64, pairs);
      place(UpdateOut::kPartials, context_.partials, DType::kFloat64, Shape{1});
    }
    if (updates_.average_decay) {
      const auto average = static_cast<size_t>(updates_.average_state());
      place(UpdateOut::kAverage, state.optimizer[average].floats(), DType::kFloat32, shard);
    }
    for (size_t i = 0; i < updates_.states.size(); ++i) {
      place(UpdateOut::kStates + i, state.optimizer[i].elements,
            state_operand_dtype(updates_.form_of(i)), Shape{table_.state_numels(unit_->id)[i]});
    }
  }

  struct Wanted {
    DType gradient = DType::kUndefined;  // kUndefined: none
    int64_t gradients = 0;               // elements
    bool onto = false, copies = false;
    UpdateSpec spec = {};
  };

  Problem problem(const Wanted& wanted, std::span<const UpdateRow> rows) const {
    Problem p = update_problem();
    if (!on_device()) {
      p.inputs[UpdateIn::kStretch] = {DType::kUInt8, Shape{int64_t{sizeof(Stretch)}}};
    }
    if (wanted.gradient != DType::kUndefined) {
      p.inputs[UpdateIn::kGradient] = {wanted.gradient, Shape{wanted.gradients}};
    }
    if (wanted.onto) p.inputs[UpdateIn::kOnto] = {DType::kFloat32, Shape{wanted.gradients}};
    for (const TensorView& view : list_->operands) p.outputs.push_back(view.desc);
    if (!wanted.copies) p.outputs[UpdateOut::kCopy] = {};
    p.attributes = update_attributes(wanted.spec, rows);
    return p;
  }

  Status add(Listing& list, const std::string& op, size_t group, const Problem& p) {
    OFSDP_ASSIGN_OR_RETURN(list.emplace_back(), make(op, p));
    if (list.back() != nullptr) return {};
    return input_error("--optimizer {}{}: --device cuda does not have it; --device cpu does",
                       updates_.groups[group].optimizer->name,
                       updates_.encodes() ? " with --state-dtype" : "");
  }

  // Null if a device does not have it.
  Result<std::unique_ptr<Kernel>> make(const std::string& op, const Problem& p) const {
    if (on_device()) return context_.device->make_kernel(op, p);
    return create_kernel(registry_.get(op), p);
  }

  // Adds `part` of each group's optimizer, for the group's rows that `takes` accepts.
  template <typename Takes>
  Status add_part(Listing& list, const char* part, Wanted wanted, const Takes& takes) {
    return add_part(list, part, std::move(wanted), takes, rows());
  }
  template <typename Takes>
  Status add_part(Listing& list, const char* part, Wanted wanted, const Takes& takes,
                  const std::vector<UpdateRow>& among) {
    for (size_t g = 0; g < updates_.groups.size(); ++g) {
      const UpdateGroup& group = updates_.groups[g];
      std::vector<UpdateRow> rows;
      std::ranges::copy_if(among, std::back_inserter(rows), [&](const UpdateRow& row) {
        return static_cast<size_t>(row.group) == g && takes(row);
      });
      if (rows.empty()) continue;
      wanted.spec.settings = group.settings;
      wanted.spec.base_lr = group.lr.value_or(-1);
      wanted.spec.seed = updates_.seed;
      const std::string op = update_op(group.optimizer->name, part);
      OFSDP_RETURN_IF_ERROR(add(list, op, g, problem(wanted, rows)));
    }
    return {};
  }

  template <typename Takes>
  Status add_average(Listing& list, const Takes& takes) {
    if (!updates_.average_decay) return {};
    std::vector<UpdateRow> taken;
    std::ranges::copy_if(rows(), std::back_inserter(taken), takes);
    if (taken.empty()) return {};
    Wanted wanted;
    wanted.spec.average_decay = *updates_.average_decay;
    wanted.spec.first_update = updates_.first_update;
    return add(list, kAverageOp, 0, problem(wanted, taken));
  }

  Status add_round(Listing& list) {
    if (list_->operands[UpdateOut::kCopy].data == nullptr) return {};
    return add(list, kRoundOp, 0, problem({.copies = true}, {}));
  }

  Status list_advance() {
    for (size_t f = 0; f < kGradientForms; ++f) {
      const auto form = static_cast<GradientForm>(f);
      if (!on_device() && form != GradientForm::kSum) continue;
      const bool slot = form == GradientForm::kSlot || form == GradientForm::kSlotOnto;
      Wanted wanted;
      wanted.gradient = slot ? unit_->plan.gradient_dtype : DType::kFloat32;
      wanted.gradients = context_.units[static_cast<size_t>(unit_->id)].owned_numel;
      wanted.onto = form == GradientForm::kSlotOnto;
      wanted.spec.round_to = slot ? plan_.reduce_dtype : DType::kFloat32;
      wanted.spec.scaled = form == GradientForm::kScaled;
      wanted.copies = copies_at_once();
      OFSDP_RETURN_IF_ERROR(list_advance(list_->advance[f], wanted));
    }
    return {};
  }

  Status list_advance(Listing& list, Wanted wanted) {
    if (table_.has_rules()) {
      if (rows().empty()) return {};
      list.push_back(context_.rules(problem(wanted, rows()), rows()));
      if (list.back() == nullptr) return fault("the device has no optimizer 'assign'");
    } else {
      OFSDP_RETURN_IF_ERROR(
          add_part(list, "advance", wanted, [](const UpdateRow& row) { return row.columns == 0; }));
      wanted.copies = false;
      OFSDP_RETURN_IF_ERROR(add_part(list, "keep", wanted, [&](const UpdateRow& row) {
        return table_.waits(row) && table_.optimizer(row).keeps_gradient();
      }));
    }
    return add_average(list, [&](const UpdateRow& row) { return !table_.waits(row); });
  }

  // With across_ranks every rank sums over the whole unit.
  Status list_factors() {
    const Span part = plan_.across_ranks ? Span{0, unit_->padded_numel}
                                         : plan_.represented(*unit_, table_.rank());
    const std::vector<UpdateRow> among = table_.sum_rows(*unit_, part);
    const auto factored = [](const UpdateRow& row) { return row.columns > 0 && row.count() > 0; };
    list_->operands[UpdateOut::kSums] = {nullptr,
                                         {DType::kFloat32, Shape{factor_sums(updates_, *unit_)}}};
    OFSDP_RETURN_IF_ERROR(add_part(list_->sums, "sums",
                                   {.gradient = DType::kFloat32, .gradients = part.numel}, factored,
                                   among));
    OFSDP_RETURN_IF_ERROR(add_part(list_->factors, "factors", {}, factored));
    list_->operands[UpdateOut::kSums] = {};
    return {};
  }

  Status list_norms() {
    const UnitState& state = context_.units[static_cast<size_t>(unit_->id)];
    const Span unique = plan_.represented(*unit_, table_.rank());
    const int64_t begin = unique.begin - state.owned_begin;
    std::vector<UpdateRow> clipped;
    for (UpdateRow row : rows()) {
      const int64_t first = std::max(row.begin, begin);
      row.end = std::min(row.end, begin + unique.numel);
      if (first >= row.end) continue;
      row.first += first - row.begin;
      row.begin = first;
      if (row.columns > 0 && row.count() <= 0) continue;  // a gap
      clipped.push_back(row);
    }
    Wanted wanted;
    wanted.spec.exact = plan_.across_ranks;
    return add_part(
        list_->norms, "norms", wanted,
        [&](const UpdateRow& row) {
          return table_.waits(row) && table_.optimizer(row).needs_norms();
        },
        clipped);
  }

  Status list_apply() {
    OFSDP_RETURN_IF_ERROR(add_round(list_->round));
    if (updates_.average_decay)
      OFSDP_RETURN_IF_ERROR(add(list_->swap, kSwapOp, 0, problem({}, {})));
    if (!table_.takes_steps()) return {};
    const auto waits = [&](const UpdateRow& row) { return table_.waits(row); };
    OFSDP_RETURN_IF_ERROR(add_part(list_->apply, "step", {}, waits));
    OFSDP_RETURN_IF_ERROR(add_average(list_->apply, waits));
    return add_round(list_->apply);
  }

  Status list_matrices() {
    if (context_.orthogonal.empty()) return {};
    OrthogonalUnit& matrices = context_.orthogonal[static_cast<size_t>(unit_->id)];
    if (matrices.empty()) return {};
    const RankGroup group = unit_->plan.shards > 1 ? plan_.shard_group(*unit_, table_.rank())
                                                   : RankGroup{0, plan_.world, 1};
    const int place = group.index_of(table_.rank());
    int64_t at = 0;  // elements before it are listed
    for (OrthogonalMatrix& m : matrices) {
      if (place != 0) OFSDP_RETURN_IF_ERROR(add_clear(at, m.offset));
      at = m.offset + m.numel();
      if (m.owner == place) {
        list_->matrices.push_back({m.offset, &m});
      } else {
        OFSDP_RETURN_IF_ERROR(add_clear(m.offset, at));
      }
    }
    return place != 0 ? add_clear(at, unit_->padded_numel) : ok_status();
  }

  Status add_clear(int64_t begin, int64_t end) {
    if (begin == end) return {};
    Updater::MatrixUpdate& made = list_->matrices.emplace_back();
    made.offset = begin;
    made.cleared = {DType::kFloat32, Shape{end - begin}};
    Problem p;
    p.outputs = {made.cleared};
    OFSDP_ASSIGN_OR_RETURN(made.clear, make(kPutOp, p));
    return made.clear != nullptr ? Status{} : fault("the device has no operation {}", kPutOp);
  }

  Updater& updater_;
  UpdaterContext& context_;
  const UpdateTable& table_;
  const UpdatePlan& updates_;
  const Plan& plan_;
  Registry registry_;
  const Unit* unit_ = nullptr;  // the one being listed
  Updater::UnitUpdate* list_ = nullptr;
};

Updater::Updater(UpdaterContext context) : context_(std::move(context)) {
  const UpdatePlan& updates = table().updates();
  of_one_thread_ =
      table().has_rules() || std::ranges::any_of(updates.groups, [](const UpdateGroup& group) {
        return group.optimizer->name.starts_with("plugin:");
      });
  if (context_.device != nullptr) return;
  means_.resize(static_cast<size_t>(table().matrices()));
  context_.means = means_.data();
  context_.state = &state_;
  if (!table().needs_norms()) return;
  squares_.resize(2 * static_cast<size_t>(table().parameters()));
  if (table().plan().across_ranks) limbs_.resize(squares_.size() * static_cast<size_t>(kLimbs));
  gathered_.resize(static_cast<size_t>(kMaxExchange * table().plan().world));
  context_.squares = squares_.data();
  context_.partials = limbs_.data();
}

Result<std::unique_ptr<Updater>> Updater::make(UpdaterContext context) {
  OFSDP_RETURN_IF_ERROR(check_states(context.table.updates()));
  std::unique_ptr<Updater> made(new Updater(std::move(context)));
  OFSDP_RETURN_IF_ERROR(UpdateLister(*made).list_all());
  return made;
}

void Updater::begin(const UpdateNumbers& numbers) {
  numbers_.lr = numbers.lr;
  numbers_.factor = numbers.factor;
  state_.optimizer_step = numbers.optimizer_step;
}

Status Updater::run(const Listing& listing, const UnitUpdate& unit, const Gradient& gradient,
                    const Stretch* stretch, const StepContext& step) const {
  std::array<TensorView, UpdateIn::kCount> in;
  const auto set = [&](size_t i, const void* data) {
    in[i].data = static_cast<std::byte*>(const_cast<void*>(data));
  };
  set(UpdateIn::kRunState, context_.state);
  set(UpdateIn::kStretch, stretch);
  set(UpdateIn::kGradient, gradient.values);
  set(UpdateIn::kOnto, gradient.onto);
  set(UpdateIn::kNumbers,
      context_.device == nullptr ? &numbers_ : static_cast<const DeviceStepContext&>(step).numbers);
  for (const auto& kernel : listing) {
    OFSDP_RETURN_IF_ERROR(kernel->run({in, unit.operands, nullptr, &step}));
  }
  return {};
}

Status Updater::advance(int u, GradientForm form, const Gradient& gradient, const Stretch* stretch,
                        const StepContext& step) const {
  return run(unit(u).advance[static_cast<size_t>(form)], unit(u), gradient, stretch, step);
}

Status Updater::advance(int u, int64_t begin, std::span<const float> gradient) const {
  const Stretch stretch{begin, begin + static_cast<int64_t>(gradient.size())};
  return advance(u, GradientForm::kSum, {gradient.data()}, &stretch, {});
}

Status Updater::sum_squares(int u, const float* gradient, float* sums, const StepContext& step) {
  unit(u).operands[UpdateOut::kSums].data = reinterpret_cast<std::byte*>(sums);
  return run(unit(u).sums, unit(u), {gradient}, nullptr, step);
}

Status Updater::advance_factors(int u, float* sums, const StepContext& step) {
  unit(u).operands[UpdateOut::kSums].data = reinterpret_cast<std::byte*>(sums);
  return run(unit(u).factors, unit(u), {}, nullptr, step);
}

Status Updater::add_norms(const StepContext& step) const {
  for (const UnitUpdate& unit : units_) {
    OFSDP_RETURN_IF_ERROR(run(unit.norms, unit, {}, nullptr, step));
  }
  return {};
}

Status Updater::agree_on_norms(Communicator& communicator, int64_t update) {
  std::ranges::fill(squares_, 0.0);
  std::ranges::fill(limbs_, 0.0);
  OFSDP_RETURN_IF_ERROR(add_norms({}));
  const CollectiveSite site{"exchange of parameters' norms", -1, update};
  return limbs_.empty() ? exchange(communicator, site) : exchange_exact(communicator, site);
}

Status Updater::exchange(Communicator& communicator, const CollectiveSite& site) {
  for (size_t first = 0; first < squares_.size(); first += kMaxExchange) {
    const size_t count = std::min<size_t>(kMaxExchange, squares_.size() - first);
    const auto mine = std::span(squares_).subspan(first, count);
    const auto all = std::span(gathered_).first(count * static_cast<size_t>(communicator.size()));
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, site));
    std::ranges::fill(mine, 0.0);
    for (size_t i = 0; i < all.size(); ++i) mine[i % count] += all[i];
  }
  return {};
}

Status Updater::exchange_exact(Communicator& communicator, const CollectiveSite& site) {
  static_assert(kLimbs <= kMaxExchange);
  constexpr auto kEach = static_cast<size_t>(kLimbs);
  const auto all = std::span(gathered_).first(kEach * static_cast<size_t>(communicator.size()));
  for (size_t i = 0; i < squares_.size(); ++i) {
    const auto mine = std::span(limbs_).subspan(i * kEach, kEach);
    OFSDP_RETURN_IF_ERROR(communicator.exchange(mine, all, site));
    squares_[i] = ExactSquares::sum(all);
  }
  return {};
}

Status Updater::orthogonalize(int u, float* values, std::byte* work, const StepContext& step) {
  for (const MatrixUpdate& part : unit(u).matrices) {
    float* const at = values + part.offset;
    if (part.matrix != nullptr) {
      OFSDP_RETURN_IF_ERROR(runtime::orthogonalize(*part.matrix, at, work, step));
    } else {
      const TensorView cleared{reinterpret_cast<std::byte*>(at), part.cleared};
      OFSDP_RETURN_IF_ERROR(part.clear->run({{}, {&cleared, 1}, nullptr, &step}));
    }
  }
  return {};
}

// On the CPU block by block, so that the average and the copy find the parameters in the cache.
Status Updater::apply(int u, const StepContext& step) const {
  const Listing& listing = unit(u).apply;
  if (context_.device != nullptr) return run(listing, unit(u), {}, nullptr, step);
  const int64_t numel = context_.units[static_cast<size_t>(u)].owned_numel;
  for (int64_t begin = 0; begin < numel; begin += kUpdateBlock) {
    const Stretch stretch{begin, std::min(numel, begin + kUpdateBlock)};
    OFSDP_RETURN_IF_ERROR(run(listing, unit(u), {}, &stretch, step));
  }
  return {};
}

Status Updater::round(int u, const StepContext& step) const {
  return run(unit(u).round, unit(u), {}, nullptr, step);
}

Status Updater::swap_average(const StepContext& step) const {
  for (const UnitUpdate& unit : units_) {
    OFSDP_RETURN_IF_ERROR(run(unit.swap, unit, {}, nullptr, step));
    OFSDP_RETURN_IF_ERROR(run(unit.round, unit, {}, nullptr, step));
  }
  return {};
}

}  // namespace ofsdp::runtime
