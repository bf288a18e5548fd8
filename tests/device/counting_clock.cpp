// A clock that ticks with each operation: what runs behind something else is later.
#include "tests/device/counting_device.h"
#include "tests/support/namespaces.h"

namespace ofsdp::counting {
namespace {

ofsdp_event* make_timed_event(ofsdp_device* device) {
  ++device->counts["events_made"];
  auto* event = new ofsdp_event;
  event->timed = true;
  return event;
}

int32_t elapsed(ofsdp_device* device, ofsdp_event* first, ofsdp_event* then, double* microseconds) {
  for (const ofsdp_event* event : {first, then}) {
    if (!event->timed) return device->violation("a time of an event that is not timed");
    if (event->capture != nullptr) return device->violation("a time of an event of a graph");
    if (event->recorded == 0 || event->reached < event->recorded) {
      return device->violation("a time of an event that was not reached");
    }
  }
  *microseconds = static_cast<double>(then->at) - static_cast<double>(first->at);
  return 0;
}

}  // namespace

void add_clock(ofsdp_device_table& table) {
  table.make_timed_event = Locked<make_timed_event>::call;
  table.elapsed = Locked<elapsed>::call;
}

}  // namespace ofsdp::counting
