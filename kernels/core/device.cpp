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

Result<DeviceMemory> DeviceMemory::allocate(Device& device, MemoryLedger& ledger, size_t bytes,
                                            Place place, const std::string& name) {
  DeviceMemory memory;
  if (bytes == 0) return memory;
  const size_t whole = region_bytes(bytes);
  const auto data = device.allocate(place, whole);
  if (!data.ok()) {
    return fault("no memory for {}: {} bytes ({})", name, whole, data.error().message());
  }
  memory.data_ = {static_cast<std::byte*>(*data), DeviceMemoryDrop{&device, &ledger, place, whole}};
  ledger.add(whole);
  return memory;
}

Result<DeviceEvent> DeviceEvent::make(Device& device, bool timed) {
  auto event = device.make_event(timed);
  if (!event.ok()) return std::move(event).status().with_prefix("an event");
  DeviceEvent made;
  made.event_ = {*event, DeviceEventDrop{&device}};
  return made;
}

}  // namespace ofsdp::kernels
