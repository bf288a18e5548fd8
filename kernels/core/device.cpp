#include "kernels/core/device.h"

#include <utility>

namespace ofsdp::kernels {

Result<std::unique_ptr<Device>> with_streams(std::unique_ptr<Device> device) {
  for (ofsdp_stream** stream : {&device->compute_, &device->communication_, &device->upload_}) {
    auto made = device->make_stream(stream == &device->communication_);
    if (!made.ok()) return std::move(made).status().with_prefix("a stream");
    *stream = *made;
  }
  return device;
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
  device_->release(place_, data_);
  ledger_->remove(bytes_);
}

Result<DeviceMemory> DeviceMemory::allocate(Device& device, MemoryLedger& ledger, size_t bytes,
                                            Place place, const std::string& name) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  const size_t whole = region_bytes(bytes);
  const auto data = device.allocate(place, whole);
  if (!data.ok()) {
    return fault("no memory for {}: {} bytes ({})", name, whole, data.error().message());
  }
  memory.device_ = &device;
  memory.ledger_ = &ledger;
  memory.place_ = place;
  memory.data_ = static_cast<std::byte*>(*data);
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
  if (event_ != nullptr) device_->drop_event(event_);
}

Result<DeviceEvent> DeviceEvent::make(Device& device, bool timed) {
  auto event = device.make_event(timed);
  if (!event.ok()) return std::move(event).status().with_prefix("an event");
  DeviceEvent made;
  made.device_ = &device;
  made.event_ = *event;
  return made;
}

}  // namespace ofsdp::kernels
