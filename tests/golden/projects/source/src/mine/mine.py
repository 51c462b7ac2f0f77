import mine
