// What the preload's hooks call: the wrappers of the second driver where it is wanted, else the driver's own functions.
#pragma once

#include "driver_api.h"

// NULL while no driver is loaded.
const mg_driver *calls_driver(void);
