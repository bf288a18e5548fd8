#include "kernels/core/device.h"

#include <array>
#include <utility>

#include "kernels/core/device_problem.h"

namespace ofsdp::kernels {
namespace {

using Text = std::array<char, 512>;

class DeviceKernel final : public Kernel {
 public:
  DeviceKernel(Device& device, ofsdp_kernel* kernel, size_t workspace, const Problem& problem)
      : device_(device),
        kernel_(kernel),
        workspace_(workspace),
        inputs_(problem.inputs.size()),
        outputs_(problem.outputs.size()) {}
  ~DeviceKernel() override { device_.table().drop_kernel(device_.handle(), kernel_); }
  size_t workspace_bytes() const override { return workspace_; }

  Status run(const KernelArgs& args) override {
    const auto& step = static_cast<const DeviceStepContext&>(*args.step);
    for (size_t i = 0; i < inputs_.size(); ++i) inputs_[i] = args.inputs[i].data;
    for (size_t i = 0; i < outputs_.size(); ++i) outputs_[i] = args.outputs[i].data;
    const ofsdp_launch launch{inputs_.data(), outputs_.data(), args.workspace, step.numbers,
                              step.samples,   step.fault,      step.node};
    ofsdp_stream* const stream = step.stream != nullptr ? step.stream : device_.compute();
    return device_.call("a kernel", device_.table().run, kernel_, stream, &launch);
  }

 private:
  Device& device_;
  ofsdp_kernel* kernel_;
  size_t workspace_;
  std::vector<void*> inputs_, outputs_;
};

}  // namespace

Result<std::unique_ptr<Device>> Device::open(const ofsdp_device_table& table, int ordinal,
                                             void* library) {
  std::unique_ptr<Device> device(new Device(table, library));
  Text text{};
  device->device_ = table.open(ordinal, text.data(), text.size());
  if (device->device_ == nullptr) return input_error("--device cuda: {}", text.data());
  for (ofsdp_stream** stream : {&device->compute_, &device->communication_, &device->upload_}) {
    const bool urgent = stream == &device->communication_;
    *stream = table.make_stream(device->device_, urgent ? 1 : 0);
    if (*stream == nullptr) return fault("a stream: {}", table.error(device->device_));
  }
  return device;
}

Device::~Device() {
  if (device_ == nullptr) return;
  for (ofsdp_stream* stream : {compute_, communication_, upload_}) {
    if (stream != nullptr) table_.drop_stream(device_, stream);
  }
  table_.close(device_);
  // The library stays mapped: threads and exit handlers of the driver may still be in it.
}

std::string Device::description() const {
  Text text{};
  table_.describe(device_, text.data(), text.size());
  return text.data();
}

std::string Device::missing() const {
  std::array<char, 2048> text{};
  table_.missing(text.data(), text.size());
  return text.data();
}

Status Device::check(int32_t result, const char* what) const {
  return result == 0 ? Status{} : fault("{}: {}", what, table_.error(device_));
}

std::unique_ptr<Kernel> Device::make_kernel(const std::string& op, const Problem& problem) {
  const EncodedProblem encoded(op, problem);
  size_t workspace = 0;
  ofsdp_kernel* kernel = table_.make_kernel(device_, &encoded.get(), &workspace);
  if (kernel == nullptr) return nullptr;
  return std::make_unique<DeviceKernel>(*this, kernel, workspace, problem);
}

DeviceMemory::DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(ledger_, other.ledger_);
  std::swap(place_, other.place_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

DeviceMemory::~DeviceMemory() {
  if (data_ == nullptr) return;
  const ofsdp_device_table& table = device_->table();
  (place_ == Place::kPinned ? table.release_host : table.release)(device_->handle(), data_);
  ledger_->remove(bytes_);
}

Result<DeviceMemory> DeviceMemory::allocate(Device& device, MemoryLedger& ledger, size_t bytes,
                                            Place place, const std::string& name) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  const ofsdp_device_table& table = device.table();
  const size_t whole = region_bytes(bytes);
  const auto allocate = place == Place::kDevice   ? table.allocate
                        : place == Place::kShared ? table.allocate_shared
                                                  : table.allocate_host;
  void* data = allocate(device.handle(), whole);
  if (data == nullptr) {
    return fault("no memory for {}: {} bytes ({})", name, whole, table.error(device.handle()));
  }
  memory.device_ = &device;
  memory.ledger_ = &ledger;
  memory.place_ = place;
  memory.data_ = static_cast<std::byte*>(data);
  memory.bytes_ = whole;
  ledger.add(whole);
  return memory;
}

DeviceEvent::DeviceEvent(DeviceEvent&& other) noexcept { *this = std::move(other); }

DeviceEvent& DeviceEvent::operator=(DeviceEvent&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(event_, other.event_);
  return *this;
}

DeviceEvent::~DeviceEvent() {
  if (event_ != nullptr) device_->table().drop_event(device_->handle(), event_);
}

Result<DeviceEvent> DeviceEvent::make(Device& device, bool timed) {
  DeviceEvent made;
  made.device_ = &device;
  const ofsdp_device_table& table = device.table();
  made.event_ = (timed ? table.make_timed_event : table.make_event)(device.handle());
  if (made.event_ == nullptr) {
    return fault("an event: {}", device.table().error(device.handle()));
  }
  return made;
}

}  // namespace ofsdp::kernels
