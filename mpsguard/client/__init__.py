"""What an application, or who looks into one, needs of mpsguard without the guard itself."""
