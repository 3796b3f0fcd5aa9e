"""Programs that other systems start in the place of the vendor's: the control program, the device plugin's daemon."""
